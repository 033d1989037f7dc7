"""Parts of a user's own, in a folder of their own: found by gin, by --import, by entry points, without an edit here."""

import json
import os

import pytest

from mrfquant.commands import infer, run
from mrfquant.config.gin_files import Config
from mrfquant.errors import BadInput
from mrfquant.mrf import FactorGraph, uai

PARTS = """
import torch
from torch import nn

from mrfquant.data import Images, Split, dataset
from mrfquant.energies import FirstOrderTaylor
from mrfquant.families import Gradient
from mrfquant.inference import ProximalMeanField
from mrfquant.models import network
from mrfquant.mrf import SequentialMeanField
from mrfquant.projections import Projection
from mrfquant.config.settings import Positive, configurable


@configurable
class HalvedTaylor(FirstOrderTaylor):
    def gradient(self, p):
        return Gradient(weights=p.block.g / 2)


@configurable(supplied=["labelling", "optimizer"])
class MySolver(ProximalMeanField):
    method = "MINE"

    def __init__(self, labelling, optimizer, energy: FirstOrderTaylor | None = None, speed: Positive = 1.0):
        super().__init__(labelling, optimizer, energy=energy)


@network
class MyNetwork(nn.Module):
    def __init__(self, shape, classes, hidden=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], hidden), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.layers(x)


@dataset
def blobs(root) -> Images:
    labels = torch.arange(300) % 2
    images = (labels[:, None, None, None] * 200).expand(300, 1, 4, 4).to(torch.uint8).contiguous()
    split = Split(images, labels)
    return Images("blobs", split, split, split, (0.4,), (0.4,), ("dark", "light"), augment=None)


@configurable(supplied=["graph", "seed", "start"])
class MyFieldSolver(SequentialMeanField):
    pass


@configurable
class MyProjection(Projection):
    def __init__(self, sharpness: Positive = 1.0):
        self.sharpness = sharpness

    def planes(self, aux, beta, out=None):
        u = (aux * beta * self.sharpness).softmax(0)
        return u if out is None else out.copy_(u)

    def planes_vjp(self, u, g, beta, aux):
        return u * (g - (u * g).sum(0)) * (beta * self.sharpness)
"""
CONFIG = """
Experiment.dataset = @blobs
Experiment.model = @MyNetwork
Experiment.optimizer = @Adam
Experiment.inference = @MySolver
Labelling.levels = [-1, 1]
Adam.lr = 0.01
MyNetwork.hidden = 8
MySolver.speed = 2.0
MySolver.energy = @HalvedTaylor()
Trainer.iterations = 20
Trainer.eval_interval = 10
"""


@pytest.fixture
def folder(tmp_path):
    """A folder outside the repository with a module of parts and a configuration that needs it."""
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "my.gin").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def call(python, folder):
    def call(command, *words):
        done = python.run("-m", "mrfquant", command, *words, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_solver_energy_network_and_data_of_an_imported_module_run_resume_and_pack(call, folder):
    assert call("run", "--gin", "my.gin", "--import", "my_parts", "--out", "one").startswith("MINE  1-bit")
    summary = json.loads((folder / "one" / "summary.json").read_text())
    assert (summary["method"], summary["model"], summary["dataset"]) == ("MINE", "mynetwork", "blobs")
    operative = (folder / "one" / "operative.gin").read_text()
    assert "MySolver.energy = @HalvedTaylor()" in operative
    assert "MyNetwork.hidden = 8" in operative
    assert (folder / "one" / "config.gin").read_text().startswith("import my_parts\n")  # so it needs no --import now
    (folder / "one" / "summary.json").unlink()
    assert "going on from iteration 20" in call("run", "--resume", "one")
    call("pack", "one", "-o", "my.safetensors")
    assert "test top-1" in call("eval", "my.safetensors", "--import", "my_parts")


def test_a_projection_of_an_imported_module_runs_and_resumes(call, folder):
    config = CONFIG.replace("@MySolver", "@ProjectedInference").replace("MySolver.", "ProjectedInference.")
    lines = [line for line in config.splitlines() if ".speed" not in line]
    bindings = """
ProjectedInference.projection = @MyProjection()
MyProjection.sharpness = 2.0
Labelling.levels = [-1, 0, 1]
"""
    (folder / "my.gin").write_text("\n".join(["import my_parts", *lines, bindings]))
    assert call("run", "--gin", "my.gin", "--out", "one").startswith("PROJ  ")
    operative = (folder / "one" / "operative.gin").read_text()
    assert "ProjectedInference.projection = @MyProjection()" in operative
    assert "MyProjection.sharpness = 2.0" in operative
    (folder / "one" / "summary.json").unlink()
    assert "going on from iteration 20" in call("run", "--resume", "one")


def test_a_gin_file_imports_a_module_of_the_working_folder(call, folder):
    (folder / "my.gin").write_text(f"import my_parts\n{CONFIG}")
    assert call("run", "--gin", "my.gin", "--smoke", "--out", "two").startswith("MINE  1-bit mynetwork on blobs")


def test_an_installed_package_is_found_by_its_entry_point(call, folder):
    information = folder / "my_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[mrfquant.plugins]\nmine = my_parts\n")
    assert call("run", "--gin", "my.gin", "--out", "three").startswith("MINE  1-bit mynetwork on blobs")


def test_a_solver_of_fields_runs_from_its_gin_file(call, folder):
    uai.write_model(folder / "field.uai", FactorGraph([2, 2], [([0, 1], [[1.0, 0.0], [0.0, 1.0]])]))
    (folder / "solver.gin").write_text("import my_parts\nsolve.solver = @MyFieldSolver\n")
    assert "solver: converged" in call("infer", "field.uai", "--solver", "solver.gin")


BROKEN = {
    "missing_friend": ("import no_such_friend\n", "missing_friend imports no_such_friend, which is not installed"),
    "raises": ("x = 1\nraise KeyError('gone')\n", "importing raises ended with KeyError: 'gone'"),
    "leaves": ("import sys\nsys.exit(3)\n", "importing leaves ended with SystemExit: 3"),
    "unparsable": ("def (:\n", "importing unparsable ended with SyntaxError"),
    "twin": (
        "from mrfquant.config.settings import configurable\n\n@configurable\nclass ProximalMeanField:\n    pass\n",
        "twin.ProximalMeanField has the name of mrfquant.inference.proximal.ProximalMeanField: give it another",
    ),
}


@pytest.mark.parametrize("module", BROKEN)
def test_a_module_that_cannot_be_imported_is_told_in_a_sentence(module, tmp_path, monkeypatch, capsys):
    text, message = BROKEN[module]
    (tmp_path / f"{module}.py").write_text(text)
    config = tmp_path / "my.gin"
    config.write_text(f"\nimport {module}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import mrfquant.training.experiment  # noqa: F401 - registers the package's own parts, as every command does

    assert run.main(["--gin", str(config)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {os.path.relpath(config)}:2: ") or err.startswith(f"error: {config}:2: ")
    assert message in err
    assert err.count("\n") == 1
    assert run.main(["--gin", "gin/pmf_lenet300_digits.gin", "--import", module]) == 2
    assert capsys.readouterr().err.startswith("error: --import: ")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_module", "there is no module 'no_such_module': run the command in the folder that holds it"),
        ("mrfquant.nothing", "there is no module 'mrfquant.nothing'"),
        ("./my_solver.py", "'./my_solver.py' is not the name of a module: write my_solver for the file my_solver.py"),
    ],
)
def test_a_module_that_is_not_there_is_told(module, message, capsys, tmp_path):
    for command in (run.main, lambda words: infer.main([str(tmp_path / "x.uai"), *words[2:]])):
        status = command(["--gin", "gin/pmf_lenet300_digits.gin", "--import", module])
        assert status == 2
    with pytest.raises(BadInput) as error:
        Config("gin/pmf_lenet300_digits.gin", imports=[module])
    assert message in str(error.value)


def test_a_broken_plug_in_of_an_installed_package_is_named(tmp_path, monkeypatch):
    from mrfquant.config.plugins import import_installed_plugins

    information = tmp_path / "bad_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-parts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[mrfquant.plugins]\nmine = bad_parts\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_installed_plugins.cache_clear()
    with pytest.raises(BadInput, match="the plug-in 'mine' of bad-parts: there is no module 'bad_parts'"):
        import_installed_plugins()
