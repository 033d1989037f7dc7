"""Killed at any file operation, out of room at any file operation, damaged in any file: a run goes on to the same end.

The kills are exceptions that nothing catches and after which no file operation works, as for a process that is gone.
"""

import builtins
import errno
import json
import os
import shutil
from contextlib import suppress

import pytest
import torch

from mrfquant.commands import round
from mrfquant.commands.run import main as run_main
from mrfquant.errors import BadInput, RunFailed
from mrfquant.models import LeNet300
from mrfquant.storage.checkpoints import Checkpoints
from mrfquant.training.launch import launch

SETTINGS = [f"Trainer.{s}" for s in ("iterations = 6", "eval_interval = 2", "log_interval = 1", "batch_size = 20")]
OPERATIONS = ("replace", "rename", "fsync", "mkdir", "unlink")


class Killed(BaseException):
    """The process is gone."""


class Sabotage:
    """Within the block, the file operation of that number fails, and all that follow; `count` is how many came."""

    def __init__(self, at, error):
        self.at, self.error, self.count = at, error, 0

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        for name in OPERATIONS:
            self.patch.setattr(os, name, self._guarded(getattr(os, name)))
        self.patch.setattr(builtins, "open", self._guarded(builtins.open, lambda mode="r", *_, **__: mode[0] in "wxa"))
        return self

    def __exit__(self, *error):
        self.patch.undo()

    def _guarded(self, function, counts=lambda *_, **__: True):
        def guarded(path, *args, **kwargs):
            if counts(*args, **kwargs) and path != os.devnull:
                self.count += 1
                if self.count > self.at:
                    raise self.error()
            return function(path, *args, **kwargs)

        return guarded


def run(folder):
    return launch(
        "gin/pmf_lenet300_digits.gin", bindings=SETTINGS, out=folder, resume=True, device="cpu", wandb="disabled"
    )


def outcome(folder):
    """What must be the same: the figures without timings, and the weights of the best model."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entries = [*lines, json.loads((folder / "summary.json").read_text())]
    for entry in entries:
        entry.pop("seconds", None)
        entry.pop("steps_per_second", None)
    best = Checkpoints(folder / "checkpoints").best(entries[-1]["best_iteration"])["model"]
    return entries, {name: tensor.tolist() for name, tensor in best.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run: its outcome, and how many file operations it takes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder.with_name("first"))  # what is compiled and cached once does not count
    with Sabotage(10**9, Killed) as none:
        run(folder)
    assert none.count > 50  # it sees them all
    return outcome(folder), none.count, folder


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def disturbed(folder, at, error, whole):
    """Stopped at a file operation and started again, the run ends as if nothing had happened."""
    with Sabotage(at, error), suppress(Killed, RunFailed, BadInput):  # what fails last may not matter
        run(folder)
    run(folder)
    assert outcome(folder) == whole[0], f"differs after {error.__name__} at file operation {at}"
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("error", [Killed, full])
def test_stopped_at_some_file_operations_a_run_ends_the_same(error, whole, tmp_path):
    for at in range(0, whole[1], max(1, whole[1] // 4)):
        disturbed(tmp_path / str(at), at, error, whole)


@pytest.mark.slow
@pytest.mark.parametrize("error", [Killed, full])
def test_stopped_at_every_file_operation_a_run_ends_the_same(error, whole, tmp_path):
    for at in range(whole[1]):
        disturbed(tmp_path / "run", at, error, whole)
        shutil.rmtree(tmp_path / "run")
    print(f"a run: {whole[1]} times {error.__name__}")


def flipped(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


DAMAGES = {"cut": lambda data: data[: len(data) // 2], "empty": lambda data: b"", "flipped": flipped}


def damaged(name, damage, whole, folder, capsys):
    """Damaged in a file, an unfinished run ends the same, or says what is lost, or is refused in a sentence."""
    shutil.copytree(whole[2], folder)
    (folder / "summary.json").unlink()
    file = folder / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    capsys.readouterr()
    try:
        run(folder)
    except BadInput:
        assert name == "config.gin"
        return
    told = capsys.readouterr().out
    if name.startswith("checkpoints/") and "00000006" in name:  # what was to be gone on from
        assert "set aside" in told
    if outcome(folder)[1] != whole[0][1]:
        assert "the best from here on counts" in told


def kinds(folder):
    files = (f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())
    return sorted(f for f in files if f not in (".lock", "summary.json"))


def test_damaged_in_any_file_a_run_goes_on(whole, tmp_path, capsys):
    for number, name in enumerate(kinds(whole[2])):
        damaged(name, "cut", whole, tmp_path / str(number), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_in_any_way_a_run_goes_on(damage, whole, tmp_path, capsys):
    for number, name in enumerate(kinds(whole[2])):
        damaged(name, damage, whole, tmp_path / str(number), capsys)


@pytest.fixture(scope="module")
def rounding(tmp_path_factory):
    """The words of a rounding but for its folder, how it ends, and how many file operations it takes."""
    folder = tmp_path_factory.mktemp("rounding")
    torch.manual_seed(0)
    torch.save(LeNet300((1, 28, 28), 10, width=0.05).state_dict(), folder / "weights.pt")
    words = ["--weights", str(folder / "weights.pt"), "--gin", "gin/ref_lenet300_digits.gin", "--solver", "icm"]
    words += ["--set", "LeNet300.width = 0.05", "--set", "Rounding.images = 100", "--out"]
    with Sabotage(10**9, Killed) as none:
        assert round.main([*words, str(folder / "whole")]) == 0
    return words, rounded(folder / "whole"), none.count


def rounded(folder):
    summary = json.loads((folder / "summary.json").read_text())
    best = Checkpoints(folder / "checkpoints").best(0)["model"]
    return summary["test_top1"], {name: tensor.tolist() for name, tensor in best.items()}


def killed_rounding(at, rounding, out, capsys):
    """Killed at a file operation, `round` ends the same when it is repeated, and `run` does not take it for a run."""
    words, expected, _ = rounding
    with Sabotage(at, Killed) as patched, suppress(Killed):
        patched.patch.setattr(shutil, "rmtree", lambda path: None)  # a process that is gone removes nothing
        round.main([*words, str(out)])
    if (out / "config.gin").exists() and not (out / "summary.json").exists():
        capsys.readouterr()
        assert run_main(["--resume", str(out)]) == 2
        assert "repeat the mrfquant round command with its --out" in capsys.readouterr().err
    assert round.main([*words, str(out)]) == 0
    assert rounded(out) == expected, f"differs after a kill at file operation {at}"
    assert not list(out.rglob("*.tmp"))


def test_killed_at_some_file_operations_a_rounding_ends_the_same(rounding, tmp_path, capsys):
    for at in range(0, rounding[2], 9):
        killed_rounding(at, rounding, tmp_path / str(at), capsys)


@pytest.mark.slow
def test_killed_at_every_file_operation_a_rounding_ends_the_same(rounding, tmp_path, capsys):
    for at in range(rounding[2]):
        killed_rounding(at, rounding, tmp_path / str(at), capsys)
    with capsys.disabled():
        print(f"a rounding: {rounding[2]} kills")
