"""A run's folder: who made it, from what, and how it ended."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant import __version__
from mrfquant.errors import BadInput
from mrfquant.metric import Metric, is_number
from mrfquant.storage.checkpoints import Checkpoints, Damaged
from mrfquant.storage.files import clean, leftovers, read_text, write_json, write_text
from mrfquant.text import redacted

if TYPE_CHECKING:
    import torch  # reading the folder of a run takes no torch

WRITTEN = ("config.gin", "operative.gin", "identity.json", "env.json", "metrics.jsonl", "log.txt", "summary.json")
PACKAGES = ("torch", "torchvision", "numpy", "gin-config", "wandb")


class Busy(BadInput):
    """Another process is at work on the run."""


class RunFolder:
    """The files of one run.

    config.gin     as asked for, includes expanded
    operative.gin  as used, defaults too
    identity.json  what is run: method, network, data, seed, iterations
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
    @contextmanager
    def create(cls, path: Path, config: str, again: bool = False) -> Iterator[RunFolder]:
        """Make a new run folder at `path`, owned within the block; it must not hold anything yet.

        Args:
            again: whether it may hold a run of the very same `config`, which the block begins again.
        """
        run = cls(path)
        run._check_free(config, again)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from None
        with run.owned():
            run._check_free(config, again)  # another process may have made it meanwhile
            try:
                write_text(run.config, config)
            except OSError as error:
                raise _unwritable(path, error) from None
            yield run

    def _check_free(self, config: str, again: bool) -> None:
        """Refuse a folder that holds something else than a run of `config` which may begin again."""
        if not self.path.exists() or _is_unused(self.path):
            return
        if not again:
            told = f"give another --out, or continue it with --resume {self.path}"
        elif self.config.is_file() and read_text(self.config, "replace") == config:
            return
        else:
            told = "it holds something else than this command makes; give another --out"
        raise BadInput(f"{self.path} is there already: {told}")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the run that is already at `path`."""
        run = cls(path)
        if path.is_dir() and _is_unused(path) and any(path.iterdir()):
            raise BadInput(f"{path} was stopped before its run began: start it again with --out {path}")
        for file in path.iterdir() if path.is_dir() else ():
            if file.exists() and not file.is_file() and not file.is_dir():
                raise BadInput(f"{file} is no ordinary file, as those of a run are: remove it")
        if not run.config.is_file():
            what = "has no config.gin" if path.is_dir() else "is not there"
            raise BadInput(f"{path} is not a run, it {what}: give the folder of a run, as found under runs/")
        return run

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own this run within the block: no other process can; what killed ones were writing is cleaned."""
        path = self.path / ".lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise BadInput(f"cannot lock {path} ({reason}): remove it, or make it writable") from None
        with open(handle, "r+b", buffering=0) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"another process is at work on {self.path}: wait until it ends, or stop it") from None
            if links := [name for name in WRITTEN if (self.path / name).is_symlink()]:
                raise BadInput(f"{self.path / links[0]} is a link, which would be written through: put the file there")
            clean(self.path)
            clean(self.checkpoints.folder)
            yield

    def busy(self) -> bool:
        """Return whether a process is at work here."""
        try:
            with self.owned():
                return False
        except Busy:
            return True
        except BadInput:  # nobody can be
            return False

    def identity(self) -> dict[str, Any]:
        """Return what is run, known from the start on; nothing while it is being made."""
        return _read_object(self.path / "identity.json") or {}

    def summary(self) -> dict[str, Any] | None:
        """Return the results of a finished run, or None."""
        path = self.path / "summary.json"
        summary = _read_object(path)
        if summary is not None:
            metric = Metric.of(summary).name
            needed = (f"test_{metric}", f"best_val_{metric}", "seconds", "steps_per_second")
            if not all(is_number(summary.get(name)) for name in needed):
                raise _damaged(path)
        return summary

    def records(self, warn: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl by iteration; `warn` hears of damaged lines, which are left out."""
        return read_records(self.metrics, warn)

    def settings(self) -> dict[str, str]:
        """Return the settings as used, {"Geometric.rho": "1.2"}: values as gin writes them, macros as "%name"."""
        path = self.path / "operative.gin"
        return read_settings(read_text(path, "replace")) if path.exists() else {}

    def best(self) -> dict[str, Any]:
        """Return the best model: `model`, its state dict, rounded; `solution`, where the solver stood."""
        if (summary := self.summary()) is None:
            raise BadInput(f"{self.path} is not finished: resume it first")
        if not isinstance(summary.get("best_iteration"), int):
            raise _damaged(self.path / "summary.json")
        try:
            best = self.checkpoints.best(summary["best_iteration"])
            if missing := [part for part in ("model", "solution", "packing") if part not in best]:
                raise Damaged(f"the best checkpoint of {self.path} is damaged, it lacks {missing[0]}")
            return best
        except Damaged as error:
            raise BadInput(
                f"{error}: put back a copy, or delete summary.json and resume the run, which goes on from the last "
                "checkpoint that is whole"
            ) from None

    def write_identity(self, identity: dict[str, Any]) -> None:
        """Note what is run, before it starts."""
        write_json(self.path / "identity.json", identity)

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
            sessions = list(json.loads(read_text(path))["sessions"])
        except (OSError, ValueError, TypeError, LookupError, RecursionError):  # none yet, or damaged: only a note
            sessions = []
        write_json(path, {"sessions": [*sessions, environment(device)]})


def read_records(path: Path, warn: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file; a last line that a crash cut short is normal and not told."""
    records: list[dict[str, Any]] = []
    lines = read_text(path, "replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            whole = type(record["iteration"]) is int and 0 <= record["iteration"] < 2**53
        except (ValueError, TypeError, LookupError, RecursionError):
            whole = False
        if whole:
            records.append(record)
        elif number < len(lines):
            warn(f"{path.name} is damaged in line {number}: it is left out")
    return sorted(records, key=lambda r: r["iteration"])


BINDING = re.compile(r"([\w./-]+) = *(.*)")


def read_settings(gin: str) -> dict[str, str]:
    """Return the bindings of an operative.gin as text; `Name.parameter = \\` goes on in the indented lines below it."""
    settings: dict[str, str] = {}
    name = None
    for line in gin.splitlines():
        if name and line[:1].isspace():
            settings[name] = f"{settings[name]} {line.strip()}".strip()
        elif binding := BINDING.fullmatch(line):
            name = binding[1] if "." in binding[1] else f"%{binding[1]}"
            settings[name] = binding[2].removesuffix("\\").strip()
        else:
            name = None
    return settings


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None where there is no file."""
    if not path.exists():
        return None
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(found, dict):
        raise _damaged(path)
    return found


def changed_settings(before: str, now: str) -> list[str]:
    """Return what differs between two texts of a configuration, as 'Experiment.seed = 1 (was 0)'."""
    old, new = read_settings(before), read_settings(now)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name} = {new.get(name, 'not set')} (was {old.get(name, 'not set')})" for name in names]


def _is_unused(path: Path) -> bool:
    """Return whether nothing is in a folder but what is left of a run that was stopped while it was being made."""
    return path.is_dir() and {f for f in path.iterdir() if f.name != ".lock"} <= set(leftovers(path))


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"cannot write to the output folder {path}: {error.strerror}; give another --out")


def _damaged(path: Path) -> BadInput:
    return BadInput(f"{path} is damaged: delete it and resume the run")


def new_run_path(runs: Path, name: str, seed: int) -> Path:
    """Return a path under `runs` that is free: name, seed, time."""
    stem = f"{name}-seed{seed}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = runs / stem, 2
    while path.exists():
        path, number = runs / f"{stem}-{number}", number + 1
    return path


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, git commit, command."""
    import torch

    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": redacted(" ".join(sys.orig_argv)),
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
    """Return the commit of the source, with '+' when it was changed since; None outside a checkout."""
    top = Path(__file__).parents[2]
    if not (top / ".git").exists():  # installed, perhaps somewhere in a checkout of something else
        return None
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(describe, cwd=top, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
