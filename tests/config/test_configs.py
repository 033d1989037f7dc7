"""Every configuration under gin/ builds, steps and says what the paper's table says."""

import csv
import re
from pathlib import Path

import pytest
import torch

from mrfquant.config import gin_internals
from mrfquant.config.gin_files import CONFIGS, Config
from mrfquant.training.experiment import Experiment

PAPER = Path(__file__).parents[3] / "shared" / "paper"
FOLDERS = ("", "ablations", "best", "cifar10", "full", "language", "medium")
NAMES = [
    path.relative_to(CONFIGS).as_posix() for folder in FOLDERS for path in sorted((CONFIGS / folder).glob("*_*.gin"))
]
NARROW = {name: f"{part}.width = 0.05" for name, part in (("lenet300", "LeNet300"), ("lenet5", "LeNet5"))}
NARROW |= {"vgg16": "VGG.width = 0.05", "resnet18": "ResNet.width = 0.05", "gpt": "GPT.width = 16"}
NARROW |= {"resnet20": "CifarResNet.depth = 8", "whitened": "WhitenedNet.widths = (8, 8, 8)"}
CELLS = [
    *[(model, "mnist") for model in ("lenet300", "lenet5")],
    *[(model, data) for model in ("vgg16", "resnet18") for data in ("cifar10", "cifar100")],
    ("resnet18", "tinyimagenet"),
]


def model_of(name):
    return next((model for model in NARROW if f"_{model}_" in name), "whitened")


@pytest.mark.parametrize("name", NAMES)
def test_config_builds_and_takes_training_steps(name):
    if "/parq" in name:
        pytest.importorskip("torchao")
    small = [NARROW[model_of(name)], "Trainer.iterations = 2", "Trainer.batch_size = 8"]
    config = Config(name, ["Experiment.smoke = True", *small])
    with config.locate_errors():
        experiment = Experiment(device=torch.device("cpu"), data_root=Path("nowhere"))
        trainer = experiment.trainer()
        config.check_all_used()
    before = [p.detach().clone() for p in experiment.model.parameters()]
    trainer.iterations = 3
    for _ in range(2):
        trainer._step()
    assert torch.isfinite(torch.stack(trainer._losses)).all()
    assert any(not torch.equal(a, b) for a, b in zip(before, experiment.model.parameters(), strict=True))
    if "ref_" in name or "float" in name:
        assert not len(experiment.labelling)
    elif (
        not {"Labelling.which", "Labelling.exclude", "Experiment.groups"} & settings(name).keys()
    ):  # levels everywhere, as the paper's
        assert len(experiment.labelling) == experiment.identity()["parameters"]


def test_every_cell_of_the_papers_tables_has_its_config():
    methods = ("ref", "bc", "pq", "picm", "pgd", "pmf", "md")
    wanted = {f"{method}_{model}_{data}" for method in methods for model, data in CELLS}
    wanted |= {f"pmf_retuned_{model}_{data}" for model, data in CELLS if data != "mnist"}
    wanted |= {f"pmf_no_auxiliary_{model}_{data}" for model, data in CELLS if data in ("mnist", "cifar10")}
    wanted |= {f"pmf_2bit_{model}_cifar10" for model in ("vgg16", "resnet18")} | {"pmf_2bit_lenet300_mnist"}
    wanted |= {f"{m}_{model}_digits" for m in ("ref", "picm", "pmf") for model in ("lenet300", "lenet5")}
    assert {f"{name}.gin" for name in wanted} == {name for name in NAMES if "/" not in name}


def settings(name):
    """The bindings of a config as {'Name.parameter': value}."""
    Config(name)
    return {
        f"{selector.rpartition('.')[2]}.{parameter}": value
        for (_, selector), bound in gin_internals.bound().items()
        for parameter, value in bound.items()
    }


def rows(file):
    path = PAPER / file
    return list(csv.DictReader(path.open())) if path.exists() else []


@pytest.mark.skipif(not rows("hyperparameters.csv"), reason="the paper's tables are not beside the project")
def test_hyperparameters_are_the_papers():
    checked = 0
    for row in rows("hyperparameters.csv"):
        for model in row["model"].split("|"):
            for method in row["method"].split("|"):
                bound = settings(f"{method.lower()}_{model}_{row['dataset']}")
                optimizer = "Adam" if row["optimizer"] == "adam" else "SGD"
                assert bound[f"{optimizer}.lr"] == float(row["learning_rate"])
                assert bound.get(f"{optimizer}.weight_decay", 0) == float(row["weight_decay"])
                assert bound.get(f"{optimizer}.momentum", 0) == float(row["momentum"] or 0)
                if row["lr_decay"] == "step":
                    assert bound["StepDecay.interval"] == int(row["lr_interval"])
                    assert bound["StepDecay.scale"] == float(row["lr_scale"])
                elif row["lr_decay"] == "multistep":
                    first, last, every = map(int, re.findall(r"\d+", row["lr_interval"]))
                    assert bound["MultiStepDecay.milestones"] == list(range(first, last + 1, every))
                    assert bound["MultiStepDecay.scale"] == float(row["lr_scale"])
                else:
                    assert "Trainer.learning_rate" not in bound
                if row["rho_or_reg_rate"]:
                    name = {"rho": "Geometric.rho", "reg_rate": "ProxQuant.reg_rate"}
                    kind, value = row["rho_or_reg_rate"].split()
                    assert bound[name[kind]] == float(value)
                checked += 1
    assert checked == 6 * 7


@pytest.mark.skipif(not rows("setup.csv"), reason="the paper's tables are not beside the project")
def test_budgets_are_the_papers():
    for row in rows("setup.csv"):
        model = "lenet5" if row["dataset"] == "mnist" else "resnet18"
        bound = settings(f"pmf_{model}_{row['dataset']}")
        assert bound["Trainer.batch_size"] == int(row["batch"])
        assert bound["Trainer.iterations"] == int(row["iterations"])
