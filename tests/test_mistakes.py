"""Mistakes of every day end in a sentence that says what to do, and never in a traceback."""

import json

import pytest
import torch
from torch import nn

from mrfquant import compute
from mrfquant.commands import compare
from mrfquant.commands import run as running
from mrfquant.config.gin_files import Config
from mrfquant.config.search_space import read_space
from mrfquant.data import Images, Split
from mrfquant.errors import BadInput
from mrfquant.labelling import Labelling

CONFIG = ["--gin", "gin/pmf_lenet300_digits.gin", "--smoke"]


def refused(capsys, words, *arguments, command=running.main):
    """The command ends with status 2 and one sentence that has these words."""
    assert command([str(a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert len(err) < 600


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("Labelling.levels = [1, -1", "a bracket or a text is not closed"),
        ("Labelling.levels = " + "[" * 3000, "its brackets are nested too deeply"),
        ("Labelling.levels = " + "[" * 3000 + "]" * 3000, "its brackets are nested too deeply"),
        ("import os  # =", "is not a binding"),
        ("LeNet300.width = 1e300", "the network is too large"),
        ("LeNet300.width = 1e12", "the network is too large"),
        ("Experiment.optimizer = @Adam()", "Adam needs params: bind it, or, in gin, name @Adam without parentheses"),
        ("Adam.betas = ''", "the optimizer Adam cannot be built"),
        ("Trainer.hours = 1e308", "doesn't have a parameter named 'hours'"),
        ("Trainer.batch_size = 1", "Trainer.batch_size = 1, expected at least 2 for a network with batch norm"),
    ],
)
def test_a_bad_setting_is_told(binding, words, capsys, tmp_path):
    refused(capsys, words, *CONFIG, "--out", tmp_path / "run", "--set", binding)


def test_a_folder_whose_name_is_no_text_is_refused_before_anything_is_made(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        running.main([*CONFIG, "--out", f"{tmp_path}/run\udcff"])
    assert ended.value.code == 2
    assert "is no UTF-8 text" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (1, 2\n", "a bracket or a text is not closed"),
        ("from __gin__ import dynamic_registration\n", "is gin's own, and not supported"),
        ("include '/dev/zero'\n", "is no ordinary file"),
        ("x = " + "[" * 5000 + "]" * 5000 + "\n", "its brackets are nested too deeply"),
        ("x = '\x00'\n", "error: "),
    ],
)
def test_a_bad_file_of_settings_is_told(text, words, capsys, tmp_path):
    (tmp_path / "my.gin").write_text(text)
    refused(capsys, words, "--gin", tmp_path / "my.gin", "--out", tmp_path / "run")


def test_a_space_of_thousands_of_brackets_is_told(tmp_path):
    for line in ("A.x = choice(" + "[" * 5000 + "]" * 5000 + ", 1)", "A.x = choice(" + "-" * 5000 + "1, 2)"):
        (tmp_path / "my.space").write_text(line)
        with pytest.raises(BadInput, match="is not of the form"):
            read_space(tmp_path / "my.space")


def test_a_network_that_does_not_fit_is_refused_before_its_memory_is_touched(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compute, "free_memory", lambda device: 10**6)
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda *a, **k: pytest.fail("touched"))
    refused(capsys, "a network with a Linear of 300x784 takes", *CONFIG, "--out", tmp_path / "run", "--set",
            "Experiment.dataset = @mnist")  # fmt: skip


def test_levels_that_do_not_fit_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compute, "free_memory", lambda device: 10**7)
    levels = f"Labelling.levels = {[x / 100 for x in range(100)]}"
    refused(
        capsys,
        "a labelling of",
        *CONFIG,
        "--out",
        tmp_path / "run",
        "--set",
        levels,
        "--set",
        "Experiment.form = 'planes'",
    )


def test_more_levels_than_a_label_has_bits_for_are_refused():
    with pytest.raises(BadInput, match="70,000 levels, expected at most 65,536"):
        Labelling(nn.Linear(2, 2), range(70_000))


def test_complex_parameters_cannot_be_labelled():
    with pytest.raises(BadInput, match="complex64: levels are real numbers"):
        Labelling(nn.Linear(2, 2, dtype=torch.complex64), [-1, 1])


@pytest.mark.parametrize(("mean", "std"), [(0.5, float("nan")), (0.5, float("inf")), (float("nan"), 1.0), (0.5, 0.0)])
def test_a_mean_or_std_that_is_no_number_is_told(mean, std):
    split = Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(BadInput, match="expected one number for each of the 1 channels, finite, and std above 0"):
        Images("x", split, split, split, (mean,), (std,), ("a", "b"), None)


SUMMARY = {
    **{"method": "PMF", "model": "x", "dataset": "y", "seed": 0, "bits": 1, "parameters": 9, "labelled": 9},
    **{"test_top1": 90.0, "best_val_top1": 91.0, "seconds": 3.5, "steps_per_second": 9.0, "iterations": 8},
}
NESTED = "[" * 100_000


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", NESTED),
        ("summary.json", json.dumps({**SUMMARY, "seed": {"a": []}, "method": None, "stand_in": "no"})),
        ("summary.json", json.dumps({**SUMMARY, "method": "\ud800", "parameters": 10**300, "bits": "x"})),
        ("summary.json", json.dumps({**SUMMARY, "test_top1": 1e308, "seconds": float("inf")})),
        ("summary.json", json.dumps({**SUMMARY, "test_top1": 10**400})),
        ("summary.json", json.dumps({**SUMMARY, "metric": {"name": "top1", "title": "\x1b", "higher": 1}})),
        ("summary.json", "\xff\xfe"),
        ("identity.json", NESTED),
        ("env.json", NESTED),
        ("metrics.jsonl", f'{NESTED}\n{{"iteration": 1, "loss": 1.0}}\n'),
        ("metrics.jsonl", '{"iteration": 1, "loss": Infinity}\n{"iteration": 2, "loss": 1e308}\n' * 3),
        ("metrics.jsonl", '{"iteration": 1, "loss": -1e308}\n{"iteration": 2, "loss": 1e99}\n' * 3),
        ("metrics.jsonl", f'{{"iteration": {10**400}, "loss": 1}}\n{{"iteration": -5, "loss": 1}}\n'),
        ("metrics.jsonl", f'{{"iteration": 1, "loss": {10**50}}}\n{{"iteration": 2, "loss": 1}}\n'),
        ("metrics.jsonl", '{"iteration": true, "loss": 1}\n{"iteration": 1, "loss": {}, "entropy": "x"}\n'),
        ("metrics.jsonl", "\xff\xfe\n\x00\n"),
    ],
)
def test_wrong_types_and_absurd_figures_do_not_stop_a_comparison(file, content, tmp_path, capsys):
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.gin").touch()
        (tmp_path / name / "summary.json").write_text(json.dumps({**SUMMARY, "seed": len(name)}))
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "loss": 2.0, "val_top1": 50.0}\n')
    (tmp_path / "bad" / file).write_bytes(content.encode("latin-1"))
    kinds = ["html", "csv", *(["figures"] if "e308" in content else [])]
    out = [f"--{kind}={tmp_path / kind}" for kind in kinds]
    assert compare.main([str(tmp_path), *out]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_nothing_that_a_file_names_is_imported_without_trust(tmp_path):
    (tmp_path / "my.gin").write_text("import this\n")
    with pytest.raises(BadInput, match="--import this"):
        Config(tmp_path / "my.gin", trusted=False)
