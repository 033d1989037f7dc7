"""A run's folder: who made it, from what, and how it ended."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from mrfquant import __version__
from mrfquant.errors import BadInput
from mrfquant.storage.files import write_json, write_text
from mrfquant.training import Checkpoints

PACKAGES = ("torch", "torchvision", "numpy", "gin-config", "wandb")


class RunFolder:
    """The files of one run.

    config.gin     as asked for, includes expanded
    operative.gin  as used, defaults too
    env.json       versions, device, git commit, command
    metrics.jsonl  a record per line
    log.txt        what the console said
    checkpoints/   the last two states and the best model
    summary.json   the results; written last, so a folder that has it is finished
    .lock          held by the process that works here; the system frees it when that ends, however it ends
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.config = path / "config.gin"
        self.metrics = path / "metrics.jsonl"
        self.log = path / "log.txt"

    @classmethod
    def create(cls, path: Path, config: str) -> RunFolder:
        """Make a new run folder at `path`, which must not hold anything yet."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise BadInput(f"{path} is there already: give another --out, or continue it with --resume {path}")
        run = cls(path)
        try:
            write_text(run.config, config)
        except OSError as error:
            raise BadInput(f"cannot write to the output folder {path}: {error.strerror}; give another --out") from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run that is already at `path`."""
        run = cls(path)
        if not run.config.is_file():
            what = "has no config.gin" if path.is_dir() else "is not there"
            raise BadInput(f"{path} is not a run, it {what}: give the folder of a run, as found under runs/")
        return run

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Within the block no other process can own this run."""
        with open(self.path / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"another process is at work on {self.path}: wait until it ends, or stop it") from None
            yield

    def summary(self) -> dict[str, Any] | None:
        """The results of a finished run, or None."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            summary = json.loads(path.read_text())
            return {"test_top1": summary["test_top1"], "best_iteration": summary["best_iteration"], **summary}
        except (OSError, ValueError, TypeError, KeyError):
            raise BadInput(f"{path} is damaged: delete it and resume the run") from None

    def best(self) -> dict[str, Any]:
        """The best model: `model`, its state dict, rounded; `solution`, where the solver stood."""
        if (summary := self.summary()) is None:
            raise BadInput(f"{self.path} is not finished: resume it first")
        return self.checkpoints.best(summary["best_iteration"])

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Finish the run."""
        write_json(self.path / "summary.json", summary)

    def write_operative(self, config: str) -> None:
        """Keep the configuration as used."""
        write_text(self.path / "operative.gin", config)

    def write_environment(self, device: torch.device) -> None:
        """Note with what, where and how this process runs; a resumed run adds itself to the list."""
        path = self.path / "env.json"
        try:
            sessions = list(json.loads(path.read_text())["sessions"])
        except (OSError, ValueError, TypeError, KeyError):  # not there yet, or damaged: it is only a note
            sessions = []
        write_json(path, {"sessions": [*sessions, environment(device)]})


def new_run_path(runs: Path, name: str, seed: int) -> Path:
    """A path under `runs` that is free: name, seed, time."""
    stem = f"{name}-seed{seed}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = runs / stem, 2
    while path.exists():
        path, number = runs / f"{stem}-{number}", number + 1
    return path


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, git commit, command."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": " ".join(sys.orig_argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {"mrfquant": __version__, **{name: _version(name) for name in PACKAGES}},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the source, with '+' when it was changed since; None outside a checkout."""
    top = Path(__file__).parents[2]
    if not (top / ".git").exists():  # installed, perhaps somewhere in a checkout of something else
        return None
    try:
        ask = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"]]
        commit, changed = (
            subprocess.run(c, cwd=top, capture_output=True, text=True, check=True, env={**os.environ}).stdout.strip()
            for c in ask
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")
