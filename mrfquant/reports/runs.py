"""Finding and reading the folders of runs, finished or not. They are read as text: nothing in them is executed."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mrfquant.errors import BadInput
from mrfquant.metric import is_number
from mrfquant.storage.run_folder import RunFolder
from mrfquant.text import printable

Warn = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it.

    Attributes:
        fields: the summary; of an unfinished run, its identity (method, model, seed, ...).
        settings: the operative gin settings, {"Geometric.rho": "1.2"}, values as gin writes them, macros as "%name".
        records: the lines of metrics.jsonl, by iteration.
        finished: it has a summary.
    """

    path: Path
    fields: dict[str, Any]
    settings: dict[str, str]
    records: list[dict[str, Any]]
    finished: bool

    @property
    def name(self) -> str:
        """The path as given, fit for a terminal."""
        return printable(str(self.path))

    @property
    def iteration(self) -> int:
        """The last iteration that was recorded."""
        return self.records[-1]["iteration"] if self.records else 0

    @property
    def state(self) -> str:
        """How far it is, in words."""
        if self.finished:
            return "finished"
        planned = self.fields.get("iterations")
        return f"at iteration {self.iteration:,}" + (f" of {planned:,}" if isinstance(planned, int) else "")

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the iterations at which `metric` was recorded, and its values."""
        points = [(r["iteration"], float(r[metric])) for r in self.records if is_number(r.get(metric))]
        return [i for i, _ in points], [v for _, v in points]


def find_runs(paths: Sequence[Path], warn: Warn) -> list[Path]:
    """Return the run folders among and below `paths`, each once."""
    found: dict[str, Path] = {}
    without = []
    for path in paths:
        if not path.exists():
            raise BadInput(f"{printable(str(path))} is not there: give run folders, or folders that contain them")
        below = {os.path.realpath(run): run for run in _search(path)}
        if not below:
            without.append(printable(str(path)))
        found = below | found
    if not found:
        raise BadInput(f"there is no run in {_some(without)}: give run folders, or folders that contain them")
    if without:
        warn(f"there is no run in {_some(without)}")
    return [run for _, run in sorted(found.items())]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _search(path: Path) -> Iterator[Path]:
    seen = set()
    for folder, folders, files in os.walk(path, followlinks=True):
        if "config.gin" in files:
            yield Path(folder)
            folders.clear()  # what lies inside a run is its own
        elif (real := os.path.realpath(folder)) in seen:  # a link that leads back
            folders.clear()
        else:
            seen.add(real)


def read_run(path: Path, warn: Warn) -> Run:
    """Read one run; what cannot be read is told to `warn` and treated as not there."""

    def tell(what: str) -> None:
        warn(f"{printable(str(path))}: {what}")

    folder = RunFolder(path)
    identity = _or_none(folder.identity, tell, "identity.json is damaged: it is left out") or {}
    summary = _or_none(folder.summary, tell, "summary.json is damaged: taken as unfinished")
    settings = _or_none(folder.settings, tell, "operative.gin cannot be read") or {}
    if not settings:
        tell("it has no operative.gin that can be read: its settings are not compared")
    records = _or_none(lambda: folder.records(tell), tell, "metrics.jsonl cannot be read") or []
    return Run(path, {**identity, **(summary or {})}, settings, records, summary is not None)


def _or_none(read: Callable[[], T], tell: Warn, what: str) -> T | None:
    """Return what a file says; one that cannot be read is told and treated as not there."""
    try:
        return read()
    except (BadInput, OSError):
        tell(what)
        return None
