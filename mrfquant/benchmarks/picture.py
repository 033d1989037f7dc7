"""The figures of the benchmark as one picture."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from mrfquant.reports.curves import LIGHT
from mrfquant.reports.figures import STYLE, png

ROWS = 8  # a panel has room for at least
Found = Mapping[str, Mapping[str, Any]]  # row -> column -> a number or a ratio


def write_picture(path: Path, found: Mapping[str, Found]) -> None:
    """Draw a panel for each title that has ratios."""
    panels = {}
    for title, rows in found.items():
        cells = [(row, column, f) for row, figures in rows.items() for column, f in figures.items()]
        if ratios := [cell for cell in cells if isinstance(cell[2], dict)]:
            panels[title] = ratios
    columns = min(2, max(1, len(panels)))
    height = max(1, math.ceil(len(panels) / columns))
    with rc_context(STYLE), png(path, 5.6 * columns, 2.9 * height + 0.2, dpi=130) as figure:
        places = iter(figure.subplots(height, columns, squeeze=False).flat)
        for title, ratios in panels.items():
            _draw_ratios(next(places), title, ratios)
        for axes in places:
            axes.set_visible(False)


def _draw_ratios(axes: Axes, title: str, ratios: list[tuple[str, str, Mapping[str, float]]]) -> None:
    """Draw each ratio as a dot with its quartiles, with a colour for each column."""
    names = list(dict.fromkeys(column for _, column, _ in ratios))
    for place, (_, column, figure) in enumerate(ratios):
        colour = LIGHT[names.index(column) % len(LIGHT)]
        low, middle, high = figure.get("low", figure["ratio"]), figure["ratio"], figure.get("high", figure["ratio"])
        axes.plot([low, high], [place, place], color=colour, linewidth=2.5, alpha=0.45)
        axes.plot(middle, place, "o", color=colour, markersize=4)
        axes.annotate(
            f"{middle:.3g}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize=7, color="0.3"
        )
    axes.axvline(1, color="0.5", linewidth=0.8)
    smallest, largest = min(min(f["ratio"] for *_, f in ratios), 1), max(max(f["ratio"] for *_, f in ratios), 1)
    axes.set_xlim(smallest / 1.3, max(largest * 1.5, 1.6))
    if largest / smallest < 8:  # less than a decade: a logarithmic scale has too few ticks
        axes.xaxis.set_major_locator(MaxNLocator(5))
    else:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(ratios)), [f"{row}: {column}" for row, column, _ in ratios], fontsize=7)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(max(len(ratios), ROWS) - 0.5, -0.5)
    axes.set_title(title, fontsize=9, loc="left", x=-0.3)
