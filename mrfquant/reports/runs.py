"""Finding and reading the folders of runs, finished or not. They are read as text: nothing in them is executed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrfquant.errors import BadInput
from mrfquant.text import printable

Warn = Callable[[str], None]

FIGURES = ("test_top1", "best_val_top1", "seconds", "steps_per_second")  # what a summary has to hold


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it.

    Attributes:
        fields: the summary; of an unfinished run, what its log says about it (method, model, seed, ...).
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
        """The iterations at which `metric` was recorded, and its values."""
        points = [(r["iteration"], r[metric]) for r in self.records if is_number(r.get(metric))]
        return [i for i, _ in points], [v for _, v in points]


def is_number(value: Any) -> bool:
    """A finite int or float; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def find_runs(paths: Sequence[Path], warn: Warn) -> list[Path]:
    """The run folders among and below `paths`, each once."""
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

    fields = _introduction(_text(path / "log.txt", tell)[:4096])
    summary = _summary(path / "summary.json", tell)
    settings = read_settings(_text(path / "operative.gin", tell))
    if not settings:
        tell("it has no operative.gin that can be read: its settings are not compared")
    records = _records(path / "metrics.jsonl", tell)
    return Run(path, {**fields, **(summary or {})}, settings, records, summary is not None)


def _text(path: Path, tell: Warn) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    except OSError as error:
        tell(f"{path.name} cannot be read ({error.strerror})")
        return ""


def _summary(path: Path, tell: Warn) -> dict[str, Any] | None:
    text = _text(path, tell)
    if not text and not path.exists():
        return None
    try:
        summary = json.loads(text)
        missing = [name for name in FIGURES if not is_number(summary[name])]
    except (ValueError, TypeError, LookupError, RecursionError):
        missing = list(FIGURES)
    if missing:
        tell("summary.json is damaged: taken as unfinished")
        return None
    return summary


def _records(path: Path, tell: Warn) -> list[dict[str, Any]]:
    """The records up to the first that is damaged; a last line that a crash cut short is normal and not told."""
    records: list[dict[str, Any]] = []
    lines = _text(path, tell).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            whole = isinstance(record["iteration"], int)
        except (ValueError, TypeError, LookupError, RecursionError):
            whole = False
        if not whole:
            if number < len(lines):
                tell(f"metrics.jsonl is damaged in line {number}: its curves end there")
            break
        records.append(record)
    return sorted(records, key=lambda r: r["iteration"])


# The first lines of log.txt, as mrfquant.commands.run introduces a run.
WHO = re.compile(r"^(?P<method>\S.*?)  (?:(?P<bits>\d+)-bit )?(?P<model>\S+) on (?P<dataset>\S+), seed (?P<seed>-?\d+)")
WHAT = re.compile(r"^(?P<parameters>[\d,]+) parameters, (?P<labelled>[\d,]+) of them .*; (?P<iterations>[\d,]+) iter")


def _introduction(log: str) -> dict[str, Any]:
    """What the log says about a run that has no summary yet."""
    lines = log.splitlines()
    who, what = (next(filter(None, map(pattern.match, lines)), None) for pattern in (WHO, WHAT))
    if not who or not what:
        return {}
    fields: dict[str, Any] = {key: who[key] for key in ("method", "model", "dataset")}
    fields |= {"stand_in": lines[0].startswith("STAND-IN"), "seed": int(who["seed"])}
    fields |= {key: int(what[key].replace(",", "")) for key in ("parameters", "labelled", "iterations")}
    return {**fields, "bits": int(who["bits"] or 32)}


BINDING = re.compile(r"([\w./-]+) = *(.*)")


def read_settings(gin: str) -> dict[str, str]:
    """The bindings of an operative.gin as text; `Name.parameter = \\` goes on in the indented lines below it."""
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
