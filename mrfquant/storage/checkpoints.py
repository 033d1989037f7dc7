"""Checkpoints that survive kill -9: atomic, the last two and the best kept, loaded without executing anything."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.errors import BadInput, RunFailed
from mrfquant.storage.files import atomic

if TYPE_CHECKING:
    import torch  # imported where a state is read or written: to look at a folder takes none

State = dict[str, Any]


class Checkpoints:
    """The states of one run in a folder: `step-<iteration>.pt` to go on from, `best-<iteration>.pt` the result.

    A step names the best it goes with, and a best is deleted only when no kept step names it, so whatever moment
    the process dies at, the newest whole step finds its best.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._named: dict[int, int | None] = {}  # the best that each step of this process names

    def save(self, iteration: int, state: State, best: int | None) -> None:
        """Keep `state`, the state before it, and the best each of them names."""
        kept = [i for i in self._iterations("step") if i < iteration][-1:]
        _write(self._path("step", iteration), {**state, "best_iteration": best})
        self._named = {i: self._best_named(i) for i in kept} | {iteration: best}
        bests = set(self._named.values())
        self._delete_all_but("step", {*kept, iteration})
        self._delete_all_but("best", bests)

    def save_best(self, iteration: int, state: State) -> None:
        """Write the model that did best so far; it counts once a step that names it is saved."""
        _write(self._path("best", iteration), state)

    def newest(self, warn: Callable[[str], None]) -> State | None:
        """The newest state that is whole, None if nothing was saved yet; tells `warn` about those that are not."""
        steps = self._iterations("step")
        for iteration in reversed(steps):
            path = self._path("step", iteration)
            try:
                state = _load(path)
            except BadInput as error:
                warn(f"{error}: falling back to the one before")
                path.unlink(missing_ok=True)
                continue
            if state["best_iteration"] is None or self._path("best", state["best_iteration"]).exists():
                return state
            warn(f"{path.name} names a best model that is not there: falling back to the one before")
        if steps:
            raise BadInput(f"{self.folder.parent} cannot be resumed, none of its checkpoints is whole: start it again")
        return None

    def any(self) -> bool:
        """Whether there is a state to go on from."""
        return bool(self._iterations("step"))

    def best(self, iteration: int, map_location: torch.device | str = "cpu") -> State:
        """The best model of the step that names `iteration`."""
        return _load(self._path("best", iteration), map_location)

    def _best_named(self, step: int) -> int | None:
        """The best that a step names; its file is read only if another process wrote it."""
        return self._named[step] if step in self._named else _load(self._path("step", step))["best_iteration"]

    def _path(self, kind: str, iteration: int) -> Path:
        return self.folder / f"{kind}-{iteration:08d}.pt"

    def _iterations(self, kind: str) -> list[int]:
        names = (re.fullmatch(rf"{kind}-(\d+)\.pt", path.name) for path in self.folder.glob(f"{kind}-*.pt"))
        return sorted(int(match[1]) for match in names if match)

    def _delete_all_but(self, kind: str, keep: set[int | None]) -> None:
        for iteration in self._iterations(kind):
            if iteration not in keep:
                self._path(kind, iteration).unlink()


def _write(path: Path, state: State) -> None:
    import torch

    try:
        with atomic(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else str(error).split("\n")[0]
        raise RunFailed(f"cannot write the checkpoint {path}: {reason}; the one before it is kept") from None


def _load(path: Path, map_location: torch.device | str = "cpu") -> State:
    """Read a checkpoint; weights_only refuses anything but tensors and plain values."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:  # torch's own reader does not compare the checksums
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} is damaged")
        return torch.load(path, map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise BadInput(f"there is no checkpoint {path}") from None
    except Exception as error:  # what a damaged file raises is not documented: zipfile, pickle, EOF, Runtime errors
        raise BadInput(f"the checkpoint {path} is truncated or damaged ({type(error).__name__})") from None
