"""A metric over the iterations: the mean over the runs of a group, and the range from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mrfquant.reports.groups import Group
from mrfquant.reports.runs import Run

POINTS = 1000  # more than a figure has pixels for


@dataclass(frozen=True)
class Panel:
    """One diagram: a metric of every group.

    Attributes:
        scale: "log", "linear", or "error": accuracies spaced by the logarithm of the error, 100 - accuracy.
        thin: a second metric, drawn thin beside the first.
    """

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
    """The diagrams of some groups: validation by each metric that they are judged by, then what all runs record."""
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
    """The curve of a metric over runs, or None when no run recorded it.

    Runs may have recorded at different iterations: each is interpolated between its own records and takes part from
    its first to its last, so that an unfinished run counts as far as it came.
    """
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
    """(number of the group, whether thin, curve) of everything to draw in a panel."""
    found = []
    for thin, metric in ((False, panel.metric), (True, panel.thin)):
        for number, group in enumerate(groups):
            if metric and (drawn := curve(group.runs, metric)):
                found.append((number, thin, drawn))
    return found
