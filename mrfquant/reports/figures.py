"""Training curves as PNG files, a metric each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from mrfquant.reports.curves import LIGHT, Curve, Panel, dashes, panel_curves, panels_of, style
from mrfquant.reports.groups import Group
from mrfquant.storage.files import atomic

STYLE: dict[Any, Any] = {  # the keys are matplotlib's own
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": "0.3",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "xtick.color": "0.3",
    "ytick.color": "0.3",
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
}
# Ticks of the error scale: the second row for curves that the first gives too few; page.js has them, too.
ACCURACIES = (
    (50, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9),
    (20, 40, 60, 70, 75, 80, 85, 88, 90, 92, 93, 94, 95, 96, 97, 97.5, 98, 98.5, 98.8, 99, 99.2, 99.4, 99.6, 99.8),
)
FEWEST_TICKS = 4
LONGEST = 48  # characters of a label
SMALLEST_ERROR = 0.01  # percent: one image in 10,000


@contextmanager
def png(path: Path, width: float, height: float, dpi: int = 120) -> Iterator[Figure]:
    """Give a figure of so many inches to draw on; at the end of the block it is written to `path`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    with atomic(path) as file:
        figure.savefig(file, format="png", dpi=dpi)


def write_figures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write a PNG per metric that was recorded; gives their paths."""
    written = []
    panels = panels_of(groups)
    for panel in panels:
        curves = panel_curves(panel, groups)
        if curves:
            path = folder / f"{'validation' if panel is panels[0] else panel.metric}.png"
            with rc_context(STYLE), atomic(path) as file:
                figure = draw(panel, curves, [group.label for group in groups])
                figure.savefig(file, format="png", dpi=200, bbox_inches="tight")
            written.append(path)
    return written


def draw(panel: Panel, curves: Sequence[tuple[int, bool, Curve]], labels: Sequence[str]) -> Figure:
    """Return the figure of one panel."""
    figure = Figure(figsize=(5.6, 3.4))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # The best group is drawn last, on top.
    for (number, thin, curve), (dash, offset) in reversed(list(zip(curves, dashes(curves), strict=True))):
        colour, _ = style(number)
        line: dict[str, Any] = {"color": LIGHT[colour], "linestyle": (offset, dash) if dash else "solid"}
        if thin:
            axes.plot(curve.iterations, curve.mean, linewidth=0.7, alpha=0.7, **line)
            continue
        axes.fill_between(curve.iterations, curve.low, curve.high, color=LIGHT[colour], alpha=0.18, linewidth=0)
        axes.plot(curve.iterations, curve.mean, linewidth=1.4, **line)
    axes.set_xlabel("iteration")
    axes.set_ylabel(panel.title)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set_xlim(0, max(curve.iterations[-1] for _, _, curve in curves))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _scale(axes, panel, [curve for _, _, curve in curves])
    _legend(axes, curves, labels)
    return figure


def _legend(axes: Axes, curves: Sequence[tuple[int, bool, Curve]], labels: Sequence[str]) -> None:
    handles, texts = [], []
    for number in [number for number, thin, _ in curves if not thin]:
        colour, dash = style(number)
        line: dict[str, Any] = {"color": LIGHT[colour], "linestyle": (0, dash) if dash else "solid"}
        handles.append(Line2D([], [], linewidth=1.4, label=" ", **line))
        texts.append(labels[number])
    if any(thin for _, thin, _ in curves):
        handles.append(Line2D([], [], linewidth=0.7, color="0.4", label=" "))
        texts.append("thin: relaxed, before rounding")
    legend = axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.8)
    for entry, text in zip(legend.get_texts(), texts, strict=True):
        entry.set_parse_math(False)  # a $ in a run's name is no formula
        entry.set_text(text if len(text) <= LONGEST else f"{text[:15]}...{text[18 - LONGEST :]}")


def _scale(axes: Axes, panel: Panel, curves: Sequence[Curve]) -> None:
    positive = any((curve.mean > 0).any() for curve in curves)
    if panel.scale == "error":
        axes.set_yscale("function", functions=(_from_accuracy, _to_accuracy))
        low = min(float(curve.low.min()) for curve in curves)
        high = max(float(curve.high.max()) for curve in curves)
        low, high = _widened(low, high)
        axes.set_ylim(low, high)
        rows = [[accuracy for accuracy in row if low <= accuracy <= high] for row in ACCURACIES]
        ticks = next((row for row in rows if len(row) >= FEWEST_TICKS), None)
        axes.yaxis.set_major_locator(FixedLocator(ticks) if ticks else MaxNLocator(FEWEST_TICKS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    elif panel.scale == "log" and positive:
        axes.set_yscale("log", nonpositive="clip")


def _from_accuracy(accuracy: np.ndarray) -> np.ndarray:
    return -np.log10(np.maximum(100 - np.asarray(accuracy, float), SMALLEST_ERROR))


def _to_accuracy(height: np.ndarray) -> np.ndarray:
    return 100 - 10.0 ** -np.asarray(height, float)


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return the limits with a margin, on the error scale."""
    bottom, top = _from_accuracy(np.array([low, high]))
    margin = 0.05 * max(top - bottom, 0.1)
    return tuple(_to_accuracy(np.array([bottom - margin, top + margin])))
