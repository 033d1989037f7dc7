"""What README and the guides show works as printed."""

import glob
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

from mrfquant.__main__ import commands, main
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.models import LeNet300
from mrfquant.mrf import FactorGraph, uai
from mrfquant.packing import pack_model

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = {"README.md": (ROOT / "README.md").read_text()}
GUIDES |= {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
# The fenced blocks of a guide: the file that a block is shown as, if it is, its language, its text.
FENCE = re.compile(r"(?:^`([\w.]+)`:\n\n)?^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
BLOCKS = [(guide, *found) for guide, text in GUIDES.items() for found in FENCE.findall(text)]
SNIPPETS = [
    pytest.param(guide, text, id=f"{guide}-{number}")
    for number, (guide, name, language, text) in enumerate(BLOCKS)
    if language == "python" and not name
]
COMMANDS = [
    (guide, line)
    for guide, _, _, text in BLOCKS
    for line in text.splitlines()
    if re.match(r"(mrfquant|python -m) ", line)
]
NOTEBOOK = re.findall(r"`(mrfquant \w+ [^`]+)`", GUIDES["lab.md"])


def write_packed(path):
    """A small network on two levels."""
    model = LeNet300((1, 28, 28), 10, width=0.1)
    labelling = Labelling(model, [-1, 1])
    with ProximalMeanField(labelling, lambda p: torch.optim.SGD(p, lr=0.1)).rounded():
        network = pack_model(model, labelling)
    network.write(path)


def write_files(guide, folder):
    """The files that a guide shows under their names."""
    for where, name, _, text in BLOCKS:
        if where == guide and name:
            (folder / name).write_text(text)


@pytest.mark.parametrize(("guide", "snippet"), SNIPPETS)
def test_python_snippets_run(guide, snippet, python, tmp_path):
    write_files(guide, tmp_path)
    if "model.safetensors" in snippet:
        write_packed(tmp_path / "model.safetensors")
    done = python.run("-c", snippet, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if "accuracy" in snippet:
        assert float(done.stdout.split()[-1]) > 0.9  # it trains a binary network


def test_the_front_page_shows_what_its_code_prints(python):
    (code, shown), *_ = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", GUIDES["index.md"], flags=re.DOTALL)
    word, number = python.run("-c", code).stdout.split()
    assert word in shown
    assert float(number) == pytest.approx(float(shown.split()[-1]), abs=0.05)


@pytest.mark.parametrize("guide", ["solvers.md", "energies.md", "projections.md"])
def test_the_files_of_a_guide_pass_their_tests_and_run(guide, python, tmp_path):
    write_files(guide, tmp_path)
    typed = [line for where, line in COMMANDS if where == guide and not line.startswith("mrfquant sweep ")]
    assert len(typed) > 1
    for line in typed:
        words = shlex.split(line)
        words = ["-m", *words] if words[0] == "mrfquant" else words[1:]
        if words[1:3] == ["mrfquant", "run"]:  # the budget of a test
            for setting in ("iterations = 20", "eval_interval = 10"):
                words += ["--set", f"Trainer.{setting}"]
        done = python.run(*words, cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_the_contract_test_of_the_guide_to_fields_passes(python, tmp_path):
    write_files("fields.md", tmp_path)  # its other commands are run below
    (line,) = [line for where, line in COMMANDS if where == "fields.md" and line.startswith("python -m pytest ")]
    done = python.run(*shlex.split(line)[1:], cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


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


@pytest.mark.parametrize("guide", GUIDES)
def test_files_that_they_name_are_there(guide):
    for path in re.findall(r"gin/[\w/]+\.gin", GUIDES[guide]):
        assert (ROOT / path).exists(), path
    folder = ROOT if guide == "README.md" else (DOCS / guide).parent
    for path in re.findall(r"\]\(([\w/.]+\.(?:md|png|svg|py|ipynb|gin))(?:#[\w-]+)?\)", GUIDES[guide]):
        assert (folder / path).resolve().exists(), path


LONG = ("bench", "reproduce", "sweep")  # run by their own tests
SHORTER = {"run": ["--smoke"]}


def test_every_command_that_they_name_takes_its_arguments():
    assert len(NOTEBOOK) > 10
    for line in [*(line for _, line in COMMANDS), *NOTEBOOK]:
        words = shlex.split(line, comments=True)
        if words[0] == "mrfquant" and words[1:2] != ["--help"]:
            importlib.import_module(commands()[words[1]][0]).parser().parse_args(words[2:])  # exits if it does not


@pytest.mark.parametrize("guide", ["README.md", "configs.md", "fields.md", "packed.md", "rounding.md"])
def test_the_commands_of_a_guide_run_as_typed(guide, tmp_path, monkeypatch):
    """In a folder with a run RUN and a field MODEL.uai, as the guides call them."""
    monkeypatch.chdir(tmp_path)
    write_files(guide, tmp_path)
    assert main(["run", "--gin", "gin/pmf_lenet300_digits.gin", "--smoke", "--out", "RUN"]) == 0
    uai.write_model("MODEL.uai", FactorGraph([2, 2], [([0, 1], [[1.0, 0.0], [0.0, 1.0]])]))
    Path("MODEL.uai.evid").write_text("1 0 1\n")
    uai.write_pr("MODEL.uai.PR", 2.0)
    done = []
    for where, line in COMMANDS:
        words = shlex.split(line.replace("--wandb online", "--wandb disabled"), comments=True)
        if where == guide and words[0] == "mrfquant" and words[1] not in LONG:
            words = [name for word in words[1:] for name in (sorted(glob.glob(word)) if "*" in word else [word])]
            if words[0] == "round" and "--solver" not in words:  # the default takes its time
                words += ["--solver", "gptq"]
            if words[0] == "run" and "lenet5" in line:  # half the width is a quarter of the time to round it
                words += ["--set", "LeNet5.width = 0.5"]
            assert main([*words, *SHORTER.get(words[0], [])]) == 0, line
            done.append(words[0])
    assert len(done) > 2


@pytest.mark.parametrize("guide", GUIDES)
def test_lines_are_short_but_for_tables(guide):
    long = [line for line in GUIDES[guide].splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not [line for line in long if not line.startswith("mrfquant ")]


@pytest.mark.parametrize("guide", GUIDES)
def test_no_formula_looks_like_a_tag(guide):
    """A browser would not show <g, u>: write ⟨g, u⟩ outside of code."""
    text = re.sub(r"^```.*?^```$|^    .*?$|`[^`\n]*`", "", GUIDES[guide], flags=re.DOTALL | re.MULTILINE)
    assert not [tag for tag in re.findall(r"<[^\s<>=\d][^<>]*>", text) if not tag.startswith(("<http", "<!--"))]
