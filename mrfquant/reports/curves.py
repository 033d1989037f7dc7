"""A metric over the iterations: the mean over the runs of a group and its range, and the look of its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mrfquant.reports.groups import Group
from mrfquant.reports.runs import Run

# Okabe and Ito (2008), told apart with every kind of colour vision; orange and sky blue are darkened to a contrast of
# 3 to white, and yellow, which is too faint for a line, is left out.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c08400", "#3a9ad2", "#000000")
# The same hues for a dark ground, kept apart likewise.
DARK = ("#3c8fdb", "#f0702b", "#1fb88a", "#e59ac8", "#f0b429", "#9fd8fa", "#f2f2f2")
# Groups beyond the colours repeat them with the next dash; lengths in line widths, as SVG and matplotlib count them.
DASHES = ((), (4, 1.5), (1, 1.5), (4, 1.5, 1, 1.5))
POINTS = 1000  # points of a curve, more than a figure has pixels for


def style(number: int) -> tuple[int, tuple[float, ...]]:
    """Return the colour's number and the dash of a group."""
    return number % len(LIGHT), DASHES[number // len(LIGHT) % len(DASHES)]


@dataclass(frozen=True)
class Panel:
    """One diagram: a metric of every group, maybe a thin second one; the scale "error" is log(100 - accuracy)."""

    metric: str
    title: str
    scale: str
    thin: str | None = None


PANELS = (
    Panel("loss", "training loss", "log"),
    Panel("beta", "beta", "log"),
    Panel("entropy", "entropy, bits per weight", "linear"),
    Panel("flips", "flips, share of the labels", "log"),
)


def panels_of(groups: Sequence[Group]) -> list[Panel]:
    """Return the diagrams of some groups: validation by each metric that judges them, then what all runs record."""
    metrics = {group.metric.name: group.metric for group in groups}
    validation = [
        Panel(
            f"val_{m.name}",
            f"validation {m.title}" + (f", {m.unit}" if m.unit else ""),
            "error" if m.unit == "%" and m.higher else "linear",
            thin=f"relaxed_val_{m.name}",
        )
        for m in metrics.values()
    ]
    return [*validation, *PANELS]


@dataclass(frozen=True)
class Curve:
    """Mean, lowest and highest value over the runs at some iterations, all of one length."""

    iterations: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve(runs: Sequence[Run], metric: str) -> Curve | None:
    """Return the curve of a metric, or None without records; runs are interpolated and count as far as they came."""
    series = [run.series(metric) for run in runs]
    series = [s for s in series if s[0]]
    if not series:
        return None
    grid = np.unique(np.concatenate([iterations for iterations, _ in series])).astype(float)
    if len(grid) > POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, POINTS).round().astype(int)]
    values = np.stack([np.interp(grid, iterations, v, left=np.nan, right=np.nan) for iterations, v in series])
    return Curve(grid, np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0))


def panel_curves(panel: Panel, groups: Sequence[Group]) -> list[tuple[int, bool, Curve]]:
    """Return (number of the group, whether thin, curve) of everything to draw in a panel."""
    found = []
    for thin, metric in ((False, panel.metric), (True, panel.thin)):
        for number, group in enumerate(groups):
            if metric and (drawn := curve(group.runs, metric)):
                found.append((number, thin, drawn))
    return found
