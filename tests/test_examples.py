"""The examples of the docs run by themselves and show what they say; their parts keep the contracts."""

import base64
import importlib.util
import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.testing import EnergyContract, InferenceContract
from mrfquant.training import evaluate

FOLDER = Path(__file__).parents[1] / "docs" / "examples"


@pytest.fixture
def output(python, tmp_path):
    def output(name):
        """What a script prints, in a folder of its own."""
        done = python.run(FOLDER / f"{name}.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return output


def accuracies(text):
    return [float(number) for number in re.findall(r"accuracy ([\d.]+) %", text)]


def module(script):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(script, FOLDER / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def part(script, name):
    """A class of a script."""
    return getattr(module(script), name)


def test_own_solver_trains_a_binary_network_beside_pmf(output):
    pmf, bayes = accuracies(output("own_solver"))
    assert pmf > 94
    assert bayes > 92


def test_the_pictures_of_the_guides_read_their_tables():
    pytest.importorskip("matplotlib", reason="needs the reports extra")
    rounding, speed = module("draw_rounding"), module("draw_speed")
    found, steps = rounding.accuracies(), speed.ratios()
    assert found["gptq"][0] == (pytest.approx(1.08), pytest.approx((80.10 + 81.06) / 2))
    assert [bits for bits, _ in found["trellis paths"]] == [1.041, 2.041]
    assert steps[speed.STEPS]["lenet300"]["d=2"] == {"ratio": 1.17, "low": 1.15, "high": 1.22}
    count = sum(len(row) for panel in steps.values() for row in panel.values())
    networks = f"{sum(map(len, found.values()))} networks of {len(found)} methods"
    assert f"{networks}, {len(rounding.energies())} solvers" in rounding.__doc__
    assert f"{count} ratios" in speed.__doc__


def test_own_energy_makes_more_runs_of_four_sparse_the_larger_its_weight(output):
    text = output("own_energy")
    none, small, large = (float(number) for number in re.findall(r"2:4: ([\d.]+) %", text))
    assert none + 20 < small < large
    assert min(accuracies(text)) > 90


def test_gate_channels_gives_two_networks_with_as_many_channels():
    script, data = module("gate_channels"), digits(Path())
    small = script.pruned(data, 160, cost=0.003)
    channels = [len(layer.running_mean) for layer in small if hasattr(layer, "running_mean")]
    other = script.pruned(data, 40, channels=channels)
    assert sum(channels) < 570 / 2
    assert [p.shape for p in small.parameters()] == [p.shape for p in other.parameters()]
    assert min(evaluate(model, data, "test")["top1"] for model in (small, other)) > 80


def test_round_network_by_icm_changes_every_layer_less_than_nearest(output):
    text = output("round_network")
    trained, _, icm = accuracies(text)
    assert icm > trained - 4
    errors = [[float(e) for e in re.findall(r"weight ([\d.]+)", line)] for line in text.splitlines()[1:]]
    assert len(errors[0]) == 3
    assert all(by_icm < by_nearest / 2 for by_nearest, by_icm in zip(*errors, strict=True))


def test_round_trellis_has_less_error_than_four_levels_and_writes_a_file(output, tmp_path):
    four, short, long, bits = (float(number) for number in re.findall(r"\d\.\d+", output("round_trellis")))
    assert 0.0625 < long < short < 0.7 * four
    assert 2 < bits < 2.2
    assert (tmp_path / "trellis.safetensors").stat().st_size > 256 * 384 / 4


def test_own_network_ends_binary_as_good_as_float(output):
    trained, binary = accuracies(output("own_network"))
    assert trained > 93
    assert binary > trained - 1


def test_watch_labels_draws_a_network_whose_rounding_costs_nothing_in_the_end(output, tmp_path):
    text = output("watch_labels")
    relaxed, rounded = (
        [float(number) for number in re.findall(rf"{kind} ([\d.]+) %", text)] for kind in ("relaxed", "rounded")
    )
    assert relaxed[1] - rounded[1] > 5
    assert abs(relaxed[-1] - rounded[-1]) < 2
    assert rounded[-1] > 93
    assert (tmp_path / "watch_labels.png").read_bytes().startswith(b"\x89PNG")


def test_field_from_networkx_has_belief_propagation_closer_than_mean_field(output):
    rows = [re.split(r"  +", line) for line in output("field_from_networkx").splitlines()[1:]]
    (exact, zero), (_, propagation), (bound, mean_field) = ((float(r[1].split()[0]), float(r[2])) for r in rows)
    assert zero == 0 < propagation < mean_field < 0.1
    assert bound < exact


def test_denoise_draws_solvers_that_clean_most_of_the_picture(python, tmp_path):
    done = python.run(FOLDER / "denoise.py", "icm,max_product", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (icm, wrong), (best, fewer) = (map(float, line.split()[1:3]) for line in done.stdout.splitlines()[1:])
    assert best < icm  # the energy
    assert fewer < wrong < 19.7 / 2  # per cent; of the noisy pixels, rounded, 19.7 are wrong
    assert (tmp_path / "denoise.png").read_bytes().startswith(b"\x89PNG")


def test_crf_layer_makes_the_network_better_by_the_smoothness_that_it_learns(output):
    text = output("crf_layer")
    without, with_layer = (float(number) for number in re.findall(r"right ([\d.]+) %", text))
    assert with_layer > without + 2
    assert float(re.search(r"0.00 -> ([\d.]+)", text)[1]) > 0.5


def test_generate_learns_and_continues_a_prompt(output):
    text = output("generate")
    assert re.search(r"55,296 weights on 3 levels, a file of 3\d\.\d kB\nAlice \w", text)
    assert float(re.search(r"test loss +([\d.]+)", text)[1]) < 2.4


def test_the_page_lists_every_script():
    page = (FOLDER / "index.md").read_text()
    listed = set(re.findall(r"^\| \W(\w+\.py)\W", page, flags=re.MULTILINE))
    assert {path.name for path in FOLDER.glob("*.py")} <= listed


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_scripts_are_short_and_say_what_to_expect(path):
    text = path.read_text()
    assert len(text.splitlines()) <= {"round_lm.py": 105, "gate_channels.py": 90}.get(path.name, 76)
    assert "Expected output" in text.split('"""')[1]


def stored_outputs(notebook):
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def printed(notebook):
    return "".join("".join(output["text"]) for output in stored_outputs(notebook) if output["output_type"] == "stream")


def check_walk(text):
    """What the notebook prints: Theorem 3.1 holds, and every network has learned."""
    closed, optimized = re.findall(r"(?:closed form|optimizer) +(\[.*\])", text)
    assert closed == optimized
    relaxed, rounded = (float(number) for number in re.search(r"relaxed ([\d.]+) %, rounded ([\d.]+) %", text).groups())
    assert abs(relaxed - rounded) < 2
    found = accuracies(text)
    assert len(found) == 4
    assert min(rounded, *found) > 93


def test_the_notebook_has_its_outputs_and_is_small():
    notebook = json.loads((FOLDER / "paper_walk.ipynb").read_text())
    check_walk(printed(notebook))
    pictures = [
        output["data"]["image/png"] for output in stored_outputs(notebook) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 5
    assert sum(len(base64.b64decode("".join(picture))) for picture in pictures) < 300_000


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="needs the docs extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the docs extra")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(FOLDER / "paper_walk.ipynb", 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises if a cell does
    check_walk(printed(notebook))


def test_beta_of_a_solver_of_your_own_is_in_the_log():
    labelling = mq.Labelling(nn.Linear(4, 3), [-1, 1])
    solver = BAYES(labelling, lambda p: torch.optim.Adam(p, lr=0.1), beta=mq.Constant(1000.0))
    assert solver.settings() == {"learning_rate": 0.1, "beta": 1000.0}


BAYES = part("own_solver", "BayesBiNN")


class TestBayesBiNN(InferenceContract):
    part = BAYES
    settings = {"beta": mq.Constant(1000.0)}
    level_sets = ((-1, 1),)


TWO_OF_FOUR = part("own_energy", "TwoOfFour")


class TestTwoOfFour(EnergyContract):
    part = TWO_OF_FOUR
    level_sets = ((-1, 0, 1), (-1, 0, 1, 2))
    gin_name = None


def test_the_value_of_two_of_four_is_the_expectation_by_enumeration():
    labelling = mq.Labelling(nn.Linear(4, 1, bias=False), [-1, 0, 1])
    u = torch.rand(3, 4).softmax(0)
    expected = 0.0
    for labels in itertools.product(range(3), repeat=4):
        probability = math.prod(u[label, j].item() for j, label in enumerate(labels))
        expected += probability * max(0, sum(label != 1 for label in labels) - 2)
    assert abs(TWO_OF_FOUR().value(mq.Independent(labelling.blocks[0], u)) - expected) < 1e-6


def test_round_lm_rounds_goes_on_and_reads_what_it_wrote(tmp_path, monkeypatch, capsys):
    """With a stand-in for transformers: a model of its interface, and letters as tokens."""
    script = module("round_lm")
    monkeypatch.setattr(script, "load", lambda *_: (Letters(), letters))
    (tmp_path / "text").write_text("to be or not to be, that is the question. " * 200)
    words = ["round_lm.py", str(tmp_path), str(tmp_path / "text"), str(tmp_path / "text"), "--windows", "4", "2"]
    packed = str(tmp_path / "small.safetensors")
    more = [
        "--group-size",
        "8",
        "--zero-point",
        "--solver",
        "gptq",
        "--folder",
        str(tmp_path / "kept"),
        "--out",
        packed,
    ]
    found = []
    for arguments in (more, more, ["--packed", packed]):
        monkeypatch.setattr("sys.argv", [*words, *arguments])
        script.main()
        found.append(capsys.readouterr().out.splitlines()[-1].partition(",")[0])
    assert found[0].startswith("perplexity ")
    assert found[0] == found[1] == found[2]
    assert len(list((tmp_path / "kept").glob("model.*.safetensors"))) == 2


@pytest.mark.parametrize("algorithm", ["gptq", "qronos"])
def test_brevitas_chooses_levels_for_the_layers_of_the_blocks_only(algorithm, monkeypatch):
    pytest.importorskip("brevitas_examples", reason="a peer: pip install mrfquant[language] brevitas")
    mq.import_torchvision()  # transformers asks for it
    transformers = pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    script = module("round_lm_brevitas")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, **shape)).eval()
    head, tokens = model.lm_head.weight.clone(), torch.randint(0, 100, (4, 32))
    with torch.no_grad():
        model = script.quantized(model, 2, 16, "mse")
        model.model(tokens[:1], use_cache=False)
        script.choose(model.model, tokens, algorithm, whole=False)
    groups = model.model.layers[1].mlp.down_proj.weight.reshape(-1, 16)
    assert all(len(group.unique()) <= 4 for group in groups)
    assert torch.equal(model.lm_head.weight, head)


def letters(text, return_tensors):
    assert return_tensors == "pt"
    return SimpleNamespace(input_ids=torch.tensor([[ord(letter) % 64 for letter in text]]))


class Letters(nn.Module):
    """A causal model as transformers has them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = Blocks()
        self.lm_head = nn.Linear(16, 64, bias=False)
        self.lm_head.weight = self.model.embedding.weight

    def forward(self, tokens):
        return SimpleNamespace(logits=self.lm_head(self.model(tokens)))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))

    def forward(self, tokens, use_cache=False):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return x
