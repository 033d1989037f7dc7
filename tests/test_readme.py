"""What README and the guides show works as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mrfquant.__main__ import commands
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.models import LeNet300
from mrfquant.packing import pack_model

ROOT = Path(__file__).parents[1]
GUIDES = {path.name: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
SNIPPETS = [
    pytest.param(guide, snippet, id=f"{guide}-{number}")
    for guide, text in GUIDES.items()
    for number, snippet in enumerate(re.findall(r"(?<!:\n\n)```python\n(.*?)```", text, flags=re.DOTALL))
]
COMMANDS = [
    (guide, line)
    for guide, text in GUIDES.items()
    for block in re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)
    for line in block.splitlines()
    if re.match(r"(\.venv/bin/)?python -m ", line)
]
ENVIRONMENT = {**os.environ, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def write_packed(path):
    """A small network on two levels."""
    model = LeNet300((1, 28, 28), 10, width=0.1)
    labelling = Labelling(model, [-1, 1])
    with ProximalMeanField(labelling, lambda p: torch.optim.SGD(p, lr=0.1)).rounded():
        network = pack_model(model, labelling)
    network.write(path)


def write_files(guide, folder):
    """The files that a guide shows under their names."""
    for name, text in re.findall(r"^`([\w.]+)`:\n\n```\w*\n(.*?)```", GUIDES[guide], flags=re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text)


def call(words, folder):
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("guide", "snippet"), SNIPPETS)
def test_python_snippets_run(guide, snippet, tmp_path):
    write_files(guide, tmp_path)
    if "model.safetensors" in snippet:
        write_packed(tmp_path / "model.safetensors")
    status, out, err = call(["-c", snippet], tmp_path)
    assert status == 0, err
    if "accuracy" in snippet:
        assert float(out.split()[-1]) > 0.9  # it trains a binary network


@pytest.mark.parametrize("guide", ["solvers.md", "energies.md", "configs.md"])
def test_the_files_of_a_guide_pass_their_tests_and_run(guide, tmp_path):
    write_files(guide, tmp_path)
    typed = [line for where, line in COMMANDS if where == guide and " mrfquant.sweep " not in line]
    assert len(typed) > 1
    for line in typed:
        words = shlex.split(line)[1:]
        if "mrfquant.run" in words:  # the budget of a test
            for setting in ("iterations = 20", "eval_interval = 10"):
                words += ["--set", f"Trainer.{setting}"]
        status, out, err = call(words, tmp_path)
        assert status == 0, f"{line}\n{out}\n{err}"


def test_the_architecture_picture_names_parts_that_are_there():
    for name in re.findall(r"^\| `([a-z_]+)(?:/|\.py)?`", GUIDES["README.md"], flags=re.MULTILINE):
        assert (ROOT / "mrfquant" / name).is_dir() or (ROOT / "mrfquant" / f"{name}.py").is_file(), name


def test_functions_that_the_mathematics_names_are_there():
    import mrfquant

    rows = [line.split("|")[3] for line in GUIDES["mathematics.md"].splitlines() if line.count("|") == 4][2:]
    assert len(rows) > 15
    for row in rows:
        owner = None
        for name in re.findall(r"`([\w.]+)`", row):
            if name.islower() and "." not in name:
                continue  # a setting
            first, _, rest = name.partition(".")
            owner = getattr(mrfquant, first) if first else owner
            assert not rest or hasattr(owner, rest) or rest in owner.__dataclass_fields__, name


def test_files_that_they_name_are_there():
    text = "\n".join(GUIDES.values())
    for path in re.findall(r"gin/[\w/]+\.gin", text) + re.findall(r"\]\(([\w/.]+\.(?:md|png|svg))\)", text):
        assert any((ROOT / folder / path).resolve().exists() for folder in (".", "docs")), path


def test_commands_that_they_name_take_the_arguments_they_give():
    for guide, line in COMMANDS:
        module = line.split("-m ")[1].split()[0]
        if module == "mrfquant" or not module.startswith("mrfquant"):
            continue
        name = module.removeprefix("mrfquant.")
        assert name in commands(), f"{guide}: {line}"
        parser = __import__(module, fromlist=["parser"]).parser()
        try:
            parser.parse_args(shlex.split(line.split(f"-m {module}")[1], comments=True))
        except SystemExit as exit:
            assert not exit.code, f"{guide}: {line}"


@pytest.mark.parametrize("guide", GUIDES)
def test_lines_are_short_but_for_tables(guide):
    long = [line for line in GUIDES[guide].splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not [line for line in long if not line.startswith(("python -m", ".venv/bin/python"))]
