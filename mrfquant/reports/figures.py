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
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mrfquant.reports.curves import LIGHT, Curve, Panel, panel_curves, panels_of, style
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
LONGEST = 48  # characters of a label
SMALLEST_ERROR = 0.01  # percent: one image in 10,000
MIN_LOG_RANGE = 8  # largest by smallest error from which 1, 2, 5 are ticks enough


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
    for number, thin, curve in reversed(curves):
        line = _line(number)
        mean, low, high = (_heights(panel, values) for values in (curve.mean, curve.low, curve.high))
        axes.plot(curve.iterations, mean, linewidth=0.7 if thin else 1.4, alpha=0.7 if thin else 1, **line)
        if not thin:
            axes.fill_between(curve.iterations, low, high, color=line["color"], alpha=0.18, linewidth=0)
    axes.set_xlabel("iteration")
    axes.set_ylabel(panel.title)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set_xlim(0, max(curve.iterations[-1] for _, _, curve in curves))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _scale(axes, panel, [curve for _, _, curve in curves])
    _legend(axes, curves, labels)
    return figure


def _line(number: int) -> dict[str, Any]:
    """Return the look of a group's line."""
    colour, dash = style(number)
    return {"color": LIGHT[colour], "linestyle": (0, dash) if dash else "solid"}


def _legend(axes: Axes, curves: Sequence[tuple[int, bool, Curve]], labels: Sequence[str]) -> None:
    handles, texts = [], []
    for number in [number for number, thin, _ in curves if not thin]:
        handles.append(Line2D([], [], linewidth=1.4, label=" ", **_line(number)))
        texts.append(labels[number])
    if any(thin for _, thin, _ in curves):
        handles.append(Line2D([], [], linewidth=0.7, color="0.4", label=" "))
        texts.append("thin: relaxed, before rounding")
    legend = axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.8)
    for entry, text in zip(legend.get_texts(), texts, strict=True):
        entry.set_parse_math(False)  # a $ in a run's name is no formula
        entry.set_text(text if len(text) <= LONGEST else f"{text[:15]}...{text[18 - LONGEST :]}")


def _scale(axes: Axes, panel: Panel, curves: Sequence[Curve]) -> None:
    if panel.scale == "error":  # errors on a logarithmic axis, labelled as accuracies
        axes.set_yscale("log")
        axes.invert_yaxis()
        largest, smallest = axes.get_ylim()
        if largest > MIN_LOG_RANGE * smallest:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 - error:g}"))
    elif panel.scale == "log" and any((curve.mean > 0).any() for curve in curves):
        axes.set_yscale("log", nonpositive="clip")


def _heights(panel: Panel, values: np.ndarray) -> np.ndarray:
    """Return what is drawn of a curve's values: of accuracies the errors."""
    return np.maximum(100 - values, SMALLEST_ERROR) if panel.scale == "error" else values
