"""The wheel, installed without extras in an environment of its own and used outside the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mrfquant

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PINS = ROOT / "constraints.txt"
# Nothing of the checkout and of the environment of the tests is seen.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
ENVIRONMENT |= {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def call(folder, *words):
    """Run a command; its exit status, output and errors."""
    command = list(map(str, words))
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def pip(python, *words):
    status, out, err = call(ROOT.parent, python, "-m", "pip", *words)
    assert status == 0, out + err


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: building leaves files behind, and takes along what an earlier one has left."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("mrfquant", "gin"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """The folder of the commands of an environment that has the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    assert call(folder, sys.executable, "-m", "venv", folder)[0] == 0
    python = folder / "bin" / "python"
    exact = re.findall(r"^(?:torch|torchvision)==.*$", PINS.read_text(), flags=re.MULTILINE)
    pip(python, "install", "--quiet", *exact, "--constraint", PINS)  # first, as in the Makefile
    pip(python, "install", "--quiet", wheel, "--constraint", PINS)
    yield folder / "bin"
    shutil.rmtree(folder)  # a gigabyte, which pytest would keep for three sessions


@pytest.fixture(scope="module")
def outside(binaries, tmp_path_factory):
    """A folder with a run of the installed command."""
    folder = tmp_path_factory.mktemp("outside")
    words = ["--gin", "gin/pmf_lenet300_digits.gin", "--set", "Trainer.iterations = 60", "--out", "run"]
    status, out, err = call(folder, binaries / "mrfquant", "run", *words)
    assert (status, err) == (0, "")
    assert "test top-1" in out
    return folder


def test_every_file_is_in_the_wheel(wheel):
    files = {f"mrfquant/{path.relative_to(ROOT / 'mrfquant').as_posix()}" for path in (ROOT / "mrfquant").rglob("*.*")}
    files |= {f"mrfquant/configs/{path.relative_to(ROOT / 'gin').as_posix()}" for path in (ROOT / "gin").rglob("*.*")}
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert not {name for name in files - inside if "__pycache__" not in name}
    assert any(name.endswith("/licenses/LICENSE") for name in inside)


def test_what_it_asks_for_is_there_and_the_extras_are_not(binaries):
    pip(binaries / "python", "check")
    for module in ("optuna", "matplotlib", "onnx", "numba", "sklearn", "torchmetrics", "pytest"):
        assert "No module named" in call(binaries, binaries / "python", "-c", f"import {module}")[2]


def test_every_public_name_is_there(binaries, tmp_path):
    code = "import mrfquant; print(mrfquant.__file__); [getattr(mrfquant, name) for name in mrfquant.__all__]"
    status, out, err = call(tmp_path, binaries / "python", "-c", code)
    assert status == 0, err
    assert Path(out.strip()).is_relative_to(binaries.parent)


@pytest.mark.parametrize("words", [["mrfquant"], ["python", "-m", "mrfquant"]])
def test_it_tells_its_version(words, binaries, tmp_path):
    found = call(tmp_path, binaries / words[0], *words[1:], "--version")
    assert found == (0, f"mrfquant {mrfquant.__version__}\n", "")


@pytest.mark.parametrize(
    "words", [["mrfquant", "run"], ["python", "-m", "mrfquant", "run"], ["python", "-m", "mrfquant.run"]]
)
def test_run_answers_under_all_its_names(words, binaries, tmp_path):
    status, out, err = call(tmp_path, binaries / words[0], *words[1:], "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: mrfquant run ")


def test_a_run_notes_the_version_and_no_commit(outside):
    (session,) = json.loads((outside / "run" / "env.json").read_text())["sessions"]
    assert session["packages"]["mrfquant"] == mrfquant.__version__
    assert session["git_commit"] is None


def test_a_run_is_compared_packed_and_tested(binaries, outside):
    for words in (
        ["compare", "run", "--html", "report.html", "--csv", "runs.csv"],
        ["pack", "run", "-o", "model.safetensors"],
        ["eval", "model.safetensors", "--layers"],
    ):
        status, _, err = call(outside, binaries / "mrfquant", *words)
        assert status == 0, err
    status, out, err = call(outside, binaries / "mrfquant", "eval", "model.safetensors")
    assert (status, err) == (0, "")
    summary = json.loads((outside / "run" / "summary.json").read_text())
    assert f"test top-1   {summary['test_top1']:.2f} %" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["sweep", "--gin", "gin/pmf_lenet300_digits.gin", "--space", "gin/spaces/pmf.space", "--trials", "1"],
            "sweep needs optuna, which is not installed: pip install 'mrfquant[sweep]'",
        ),
        (
            ["compare", "run", "--figures", "figures"],
            "--figures needs matplotlib, which is not installed: pip install 'mrfquant[reports]'",
        ),
        (
            ["pack", "run", "-o", "other.safetensors", "--onnx", "other.onnx"],
            "--onnx needs onnx, onnx_ir, onnxscript, onnxruntime, which are not installed: "
            "pip install 'mrfquant[onnx]'",
        ),
    ],
)
def test_a_missing_extra_is_told_in_one_sentence(words, told, binaries, outside):
    assert call(outside, binaries / "mrfquant", *words) == (2, "", f"error: {told}\n")
