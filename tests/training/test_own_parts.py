"""A data set, an objective and a network of a user's own, in a module that `--import` names, train from a gin file."""

import json

import pytest
import torch

import mrfquant as mq
from mrfquant.commands import compare, pack, run
from mrfquant.commands import eval as evaluation
from mrfquant.data import digits
from mrfquant.models import LeNet300

TABLES = """
import torch
from torch import nn

import mrfquant as mq


@mq.dataset
def wine(root, rows=400) -> mq.Pairs:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=random)
    y = x[:, :2].sum(1, keepdim=True) - x[:, 2:3] * x[:, 3:4]
    return mq.Pairs("wine", *((x[a:b], y[a:b]) for a, b in ((0, 300), (300, 350), (350, rows))))


@mq.network
class Table(nn.Module):
    def __init__(self, shape, classes, hidden=32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.layers(x)


@mq.configurable
class Huber(mq.Objective):
    metrics = scores = (mq.Metric("huber", "Huber loss", higher=False),)

    def __init__(self, delta: mq.Positive = 1.0) -> None:
        self.delta = delta

    def loss(self, outputs, targets):
        return nn.functional.huber_loss(outputs, targets, delta=self.delta)

    def sums(self, outputs, targets):
        return torch.stack([self.loss(outputs, targets) * targets.numel(), torch.tensor(float(targets.numel()))])

    def figures(self, sums):
        return {"huber": sums[0] / sums[1]}

    def predictions(self, outputs):
        return outputs

    def score(self, predictions, targets):
        return self.figures(self.sums(predictions, targets).tolist())


@mq.configurable
class Norms(mq.Hook):
    every = 10

    def __init__(self):
        self.steps = 0

    def step(self, trainer):
        self.steps += 1

    def evaluated(self, trainer):
        return {"norm": sum(p.norm().item() for p in trainer.model.parameters())}

    def ended(self, trainer, figures):
        trainer.say(f"looked {self.steps} times, {figures['test_huber']:.3f} in the end")


@mq.configurable
class Losses(mq.Collector):
    def open(self, folder):
        self.path = folder.path / "losses.txt"

    def record(self, iteration, values):
        with open(self.path, "a") as file:
            file.write(f"{iteration} {values['loss']}\\n")
"""
TABLES_GIN = """
Experiment.dataset = @wine
Experiment.model = @Table
Experiment.objective = @Huber
Experiment.optimizer = @Adam
Experiment.inference = @ProximalMeanField
Experiment.collectors = [@Losses()]
Labelling.levels = [-1, 0, 1]
Labelling.scale = 'layer'
Experiment.learn_scale = True
ProximalMeanField.beta = @GeometricTo()
GeometricTo.end = 200.0
Huber.delta = 0.5
Adam.lr = 0.02
Trainer.iterations = 60
Trainer.eval_interval = 20
Trainer.batch_size = 50
Trainer.hooks = [@Norms()]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_tables.py").write_text(TABLES.replace("\\\\n", "\\n"))
    (tmp_path / "tables.gin").write_text(TABLES_GIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_regression_on_tables_trains_compares_packs_and_is_evaluated(own, capsys):
    for seed in ("0", "1"):
        words = ["--gin", "tables.gin", "--import", "my_tables", "--seed", seed, "--out", f"runs/{seed}"]
        assert run.main(words) == 0
    said = capsys.readouterr().out
    assert "300 training, 50 validation, 50 test examples" in said
    assert "looked 6 times" in said
    summary = json.loads((own / "runs/0/summary.json").read_text())
    assert summary["metric"]["name"] == "huber"
    assert f"test Huber loss {summary['test_huber']:.4f}" in said
    records = [json.loads(line) for line in (own / "runs/0/metrics.jsonl").read_text().splitlines()]
    assert all("norm" in record for record in records if "val_huber" in record)
    assert len((own / "runs/0/losses.txt").read_text().splitlines()) == len(records)

    assert compare.main(["runs", "--html", "report.html", "--csv", "runs.csv"]) == 0
    assert "test Huber loss" in capsys.readouterr().out
    assert evaluation.main(["runs/0", "--samples", "2"]) == 0
    assert "Huber loss" in capsys.readouterr().out
    assert pack.main(["runs/0", "-o", "table.safetensors"]) == 0
    assert evaluation.main(["table.safetensors", "--json", "figures.json"]) == 0
    # The objective's own settings are not in the file: it is judged by the default delta.
    assert json.loads((own / "figures.json").read_text())["huber"] > 0


TEXT_GIN = """
Experiment.dataset = @text_file
text_file.file = 'mine.txt'
text_file.context = 16
Experiment.objective = @NextToken
Experiment.model = @GPT
GPT.layers = 1
GPT.width = 16
GPT.heads = 2
Experiment.optimizer = @Adam
Adam.lr = 0.01
Experiment.inference = @ProximalMeanField
Labelling.levels = [-1, 0, 1]
Labelling.which = 'weights'
Labelling.scale = 'layer'
ProximalMeanField.beta = @GeometricTo()
Trainer.iterations = 12
Trainer.eval_interval = 6
Trainer.batch_size = 4
Trainer.hooks = [@Samples()]
Samples.prompt = 'the '
Samples.length = 5
"""


def test_a_text_of_your_own_trains_resumes_packs_and_is_evaluated(own, capsys):
    (own / "mine.txt").write_text("the cat sat on the mat, and the dog did not. " * 40)
    (own / "text.gin").write_text(TEXT_GIN)
    assert (
        run.main(["--gin", "text.gin", "--out", "runs/text", "--set", "Experiment.collectors = [@TensorBoard()]"]) == 0
    )
    assert list((own / "runs/text/tensorboard").iterdir())
    summary = json.loads((own / "runs/text/summary.json").read_text())
    assert summary["test_bits"] == pytest.approx(summary["test_loss"] / 0.6931471805599453)
    assert pack.main(["runs/text", "-o", "text.safetensors"]) == 0
    capsys.readouterr()
    assert evaluation.main(["text.safetensors"]) == 2  # it names a file, which is read only where that is allowed
    assert "allow it with --data" in capsys.readouterr().err
    assert evaluation.main(["text.safetensors", "--data", "."]) == 0
    said = capsys.readouterr().out
    assert "perplexity" in said
    assert "windows/s" in said


def test_a_run_is_launched_from_python_with_parts_in_the_place_of_a_file(tmp_path):
    torch.set_num_threads(1)
    settings = {
        "Experiment.dataset": digits,
        "Experiment.model": LeNet300,
        "LeNet300.width": 0.1,
        "Experiment.optimizer": "@Adam",
        "Trainer.iterations": 4,
        "Trainer.eval_interval": 4,
    }
    folder = mq.launch(settings, out=tmp_path / "run", seed=3)
    assert folder.summary()["seed"] == 3
    again = mq.launch(folder.config, out=tmp_path / "again")  # the folder's config is a gin file like any other
    assert again.summary()["test_top1"] == folder.summary()["test_top1"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"Experiment.model": lambda shape, classes: None}, "is not known to gin: decorate it with mrfquant.configur"),
        ({"ProximalMeanField.beta": mq.GeometricTo()}, "cannot be written to a gin file"),
    ],
)
def test_what_no_gin_file_could_say_is_refused(tmp_path, setting, message):
    with pytest.raises(mq.BadInput, match=message):
        mq.launch(setting, out=tmp_path / "run")
