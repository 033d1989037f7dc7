"""Checkpoints that survive kill -9: atomic, the last two and the best kept, loaded without executing anything.

What cannot be read is never deleted: a damaged file is set aside under another name, a file that is whole and cannot
be loaded stops the run, and a state that could not be loaded again is refused when it is saved.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.errors import BadInput, RunFailed
from mrfquant.storage.files import atomic

if TYPE_CHECKING:
    import torch  # imported where a state is read or written: to look at a folder takes none

State = dict[str, Any]
Say = Callable[[str], None]
ASIDE = ".damaged"  # after the name of a file that is set aside
PARTS: dict[str, tuple[Any, str]] = {  # of a state, where it has them
    "iteration": (int, "whole number"),
    "best_iteration": (int | None, "whole number"),
    "seconds": (int | float, "number"),
    "config": (str | None, "text"),
    "best": (dict | None, "dict"),
    "losses": (list, "list"),
} | dict.fromkeys(("batches", "objective", "inference", "model", "solution", "packing"), (dict, "dict"))


class Damaged(BadInput):
    """A checkpoint is not as it was written."""


class Checkpoints:
    """The states of one run in a folder: `step-<iteration>.pt` to go on from, `best-<iteration>.pt` the result.

    A step names the best it goes with, and a best is deleted only when no kept step names it, so whatever moment
    the process dies at, the newest whole step finds its best.

    Attributes:
        config: the text of the run's configuration, kept with each step.
    """

    config: str | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._named: dict[int, int | None] = {}  # the best that each step of this process names

    def save(self, iteration: int, state: State, best: int | None) -> None:
        """Keep `state`, the state before it, and the best each of them names."""
        kept = [i for i in self._iterations("step") if i < iteration][-1:]
        self._write(self._path("step", iteration), {**state, "best_iteration": best, "config": self.config})
        self._named = {i: self._best_named(i) for i in kept} | {iteration: best}
        bests = set(self._named.values())
        self._delete_all_but("step", {*kept, iteration})
        self._delete_all_but("best", bests)

    def save_best(self, iteration: int, state: State) -> None:
        """Write the model that did best so far; it counts once a step that names it is saved."""
        self._write(self._path("best", iteration), state)

    def newest(self, warn: Say) -> State | None:
        """Return the newest state that is whole and whose best model is, too; None if nothing was saved yet.

        Damaged files are set aside, and `warn` hears of them. Where a best model is lost for every state that is left,
        the newest state comes without one ("best" and "best_iteration" are None): the best from there on counts.
        """
        alone = None  # the newest whole step, whose best is lost
        for iteration in reversed(self._iterations("step")):
            state = self._whole("step", iteration, warn)
            if state is None:
                continue
            best = state.get("best_iteration")
            self._named[iteration] = best
            if best is None or self._whole("best", best, warn) is not None:
                return state
            alone = alone or (iteration, state)
            warn(f"the best model of {self._path('step', iteration).name} is lost: trying the state before")
        if alone is not None:
            iteration, state = alone
            warn(f"going on from {self._path('step', iteration).name} without it: the best from here on counts")
            self._named[iteration] = None
            return {**state, "best": None, "best_iteration": None}
        if aside := sorted(self.folder.glob(f"step-*{ASIDE}*")):
            raise BadInput(
                f"{self.folder.parent} cannot be resumed, none of its checkpoints is whole ({aside[-1].name} is the "
                f"newest): put back a copy of one, or delete {self.folder} to start from the beginning"
            )
        return None

    def any(self) -> bool:
        """Return whether there is a state to go on from."""
        return bool(self._iterations("step"))

    def best(self, iteration: int, map_location: torch.device | str = "cpu") -> State:
        """Return the best model of the step that names `iteration`."""
        try:
            return _load(self._path("best", iteration), map_location)
        except FileNotFoundError as error:
            raise Damaged(f"there is no checkpoint {error.filename}") from None

    def _whole(self, kind: str, iteration: int, warn: Say) -> State | None:
        """Return a state, or None where there is none any more; a damaged one is set aside."""
        path = self._path(kind, iteration)
        try:
            return _load(path)
        except Damaged as error:
            warn(f"{error}: it is set aside as {_set_aside(path).name}")
        except FileNotFoundError:
            warn(f"there is no checkpoint {path}")
        return None

    def _best_named(self, step: int) -> int | None:
        """Return the best that a step names; its file is read only if another process wrote it."""
        return self._named[step] if step in self._named else _load(self._path("step", step)).get("best_iteration")

    def _path(self, kind: str, iteration: int) -> Path:
        return self.folder / f"{kind}-{iteration:08d}.pt"

    def _iterations(self, kind: str) -> list[int]:
        names = (re.fullmatch(rf"{kind}-(\d+)\.pt", path.name) for path in self.folder.glob(f"{kind}-*.pt"))
        return sorted(int(match[1]) for match in names if match)

    def _delete_all_but(self, kind: str, keep: set[int | None]) -> None:
        for iteration in self._iterations(kind):
            if iteration not in keep:
                self._path(kind, iteration).unlink(missing_ok=True)

    def _write(self, path: Path, state: State) -> None:
        """Write a state; one that could not be loaded again is refused."""
        import torch

        before = "the one before it is kept" if self.any() else "there is none before it"
        try:
            self.folder.mkdir(exist_ok=True)  # not the folder that it is in: if that is gone, somebody took it away
            with atomic(path) as file:
                torch.save(state, file)
                file.flush()
                torch.load(file.name, "cpu", weights_only=True, mmap=True)  # reads no tensor
        except FileNotFoundError:
            raise RunFailed(f"the folder {self.folder.parent} is gone: the run cannot be saved any more") from None
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise RunFailed(
                f"a state of this run cannot be saved so that it can be loaded again ({_unknown(error)}): keep only "
                "tensors, numbers, texts, lists and dicts of them in the state_dict of parts of your own"
            ) from None
        except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
            raise RunFailed(f"cannot write the checkpoint {path}: {_reason(error)}; {before}") from None


def _reason(error: BaseException) -> str:
    """Return why a file could not be written: the system's message, also if torch hides it behind its own."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if error.__context__ is not None:
        return _reason(error.__context__)
    return f"{str(error).splitlines()[0]}; is there room on the disk?"


def _unknown(error: Exception) -> str:
    """Return what a state holds that a checkpoint may not, in torch's words if it is something else."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f"it holds {found[1]}, which is no plain value" if found else (str(error) or type(error).__name__)[:100]


def _set_aside(path: Path) -> Path:
    """Rename a damaged file to a name that is free; where that is not allowed, it stays."""
    number, aside = 1, path.with_name(path.name + ASIDE)
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{ASIDE}-{number}")
    try:
        os.rename(path, aside)
    except OSError:
        return path
    return aside


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Say `what` is wrong, and why, where a state that is used in the block lacks parts or has others than expected."""
    try:
        yield
    except OSError:
        raise
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, BadInput) and str(error).startswith(what):
            raise
        reason = (str(error) or type(error).__name__).split("\n")[0].rstrip(": ")
        raise BadInput(f"{what}: {f'it lacks {reason}' if isinstance(error, KeyError) else reason}") from None


def _check_types(path: Path, state: State) -> None:
    """Refuse a state one of whose parts is of another type than was written."""
    for name, (kind, expected) in PARTS.items():
        if name in state and (not isinstance(state[name], kind) or isinstance(state[name], bool)):
            raise Damaged(f"the checkpoint {path} is damaged, its {name} is no {expected}")
        if isinstance(state.get(name), int | float) and not 0 <= state[name] < 2**53:
            raise Damaged(f"the checkpoint {path} is damaged, its {name} is {state[name]}")
    best = state.get("best")
    if best is not None and best.get("iteration") != state.get("best_iteration"):
        raise Damaged(f"the checkpoint {path} is damaged, it names two best iterations")


def check_archive(path: Path) -> None:
    """Refuse an archive of torch's that is not as it was written; its own reader does not compare the checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise zipfile.BadZipFile("it is compressed, which torch's are not")  # it might expand without bounds
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} is damaged")
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, OverflowError) as error:
        raise Damaged(f"{path} is truncated or damaged ({str(error)[:80]})") from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place before the beginning, which only a damaged file names
            raise Damaged(f"{path} is truncated or damaged") from None
        raise


def _load(path: Path, map_location: torch.device | str = "cpu") -> State:
    """Read a checkpoint of tensors and plain values: Damaged if it is not what was written, else BadInput."""
    import torch

    if path.exists() and not path.is_file():
        raise BadInput(f"the checkpoint {path} is no ordinary file: remove it")
    try:
        check_archive(path)
        state = torch.load(path, map_location, weights_only=True)
        if not isinstance(state, dict):
            raise TypeError("it is no dict")
    except Damaged as error:
        raise Damaged(f"the checkpoint {error}") from None
    except FileNotFoundError:
        raise
    except Exception as error:  # the file is whole: no permission, too little memory, of another version
        reason = error.strerror if isinstance(error, OSError) else _unknown(error)
        raise BadInput(f"the checkpoint {path} is whole and cannot be loaded: {reason}; it is left as it is") from None
    _check_types(path, state)
    return state
