"""The paper's table with our finished runs of every size below it, and what they cost, as text and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrfquant.errors import BadInput
from mrfquant.reproduction.cells import Campaign
from mrfquant.reproduction.tables import COLUMNS, RESULTS, SCALES, TABLES, spread
from mrfquant.storage.run_folder import RunFolder
from mrfquant.text import markdown

IMAGES = {"mnist": 50_000, "cifar10": 45_000, "cifar100": 45_000, "tinyimagenet": 100_000}  # of training
PAPER_EPOCHS = {"mnist": 40, "cifar10": 285, "cifar100": 285, "tinyimagenet": 128}
PAPER = "paper"
WIDTHS = {"paper": "full size", "full": "full size", "medium": "a quarter of the width"}
BETTER = "other settings"  # the authors' later ones in the paper's lines, the best found here in ours
SHOWN = ("REF", "BC", "PQ", "PQ as published", "PICM", "PGD", "PMF", BETTER)
AS_SHOWN = {"best": BETTER, "PMF retuned": BETTER}


@dataclass(frozen=True)
class Line:
    """A line of the overview: a network, who trained it and how large, for how long, test accuracies by column."""

    dataset: str
    model: str
    size: str
    epochs: float
    hours: Sequence[float]
    accuracies: dict[str, list[float]]

    @property
    def ours(self) -> bool:
        """Whether the runs are ours."""
        return self.size != PAPER


def overview(out: Path) -> list[Line]:
    """Return the paper's lines, each followed by ours: a line for every size that has finished runs below `out`."""
    lines = []
    for (dataset, model), figures in RESULTS.items():
        known = {column: [figure] for column, figure in zip(COLUMNS, figures, strict=True) if figure is not None}
        known = {AS_SHOWN.get(column, column): figure for column, figure in known.items()}
        known["PQ as published"] = known.pop("PQ")
        lines.append(Line(dataset, model, PAPER, PAPER_EPOCHS[dataset], (), known))
        for scale in SCALES:
            if line := _ours(dataset, model, scale, out):
                lines.append(line)
    if not any(line.ours for line in lines):
        raise BadInput(f"there is no finished run of the paper's table below {out}: give another --out")
    return lines


def _ours(dataset: str, model: str, scale: str, out: Path) -> Line | None:
    cells = [c for name in ("results", "best") for c in TABLES[name] if (c.dataset, c.model) == (dataset, model)]
    campaign = Campaign([c for c in cells if AS_SHOWN.get(c.column, c.column) in SHOWN], 1, scale, out)
    found = campaign.accuracies()
    accuracies = {AS_SHOWN.get(cell.column, cell.column): figures for cell, figures in found.items()}
    if not accuracies:
        return None
    done = [(cell, seed) for cell, figures in found.items() for seed in range(len(figures))]
    folders = [RunFolder(campaign.folder(cell, seed)) for cell, seed in done]
    summaries = [folder.summary() or {} for folder in folders]
    hours = [s["seconds"] * s.get("threads", 1) / 3600 for s in summaries]
    if (batch := folders[0].settings().get("Trainer.batch_size")) is None:
        raise BadInput(f"{folders[0].path} has no operative.gin that says Trainer.batch_size: copy it, too")
    epoch = IMAGES[dataset] // int(batch)
    return Line(dataset, model, WIDTHS[scale], summaries[0]["iterations"] / epoch, hours, accuracies)


def table(lines: Sequence[Line]) -> str:
    """Return the overview as Markdown: mean ± deviation over seeds and their number, a dash without runs."""
    rows = [["network, data", "", "epochs", "core-hours a run", *SHOWN]]
    for line in lines:
        name = "" if line.ours else f"{line.model}, {line.dataset}"
        rows.append([name, line.size, f"{line.epochs:.0f}", _range(line.hours)])
        rows[-1] += [_figure(line.accuracies.get(column, ())) for column in SHOWN]
    return markdown(rows)


def _range(hours: Sequence[float]) -> str:
    low, high = (f"{h:.2g}" for h in (min(hours, default=0), max(hours, default=0)))
    return "" if not hours else low if low == high else f"{low} to {high}"


def _figure(accuracies: Sequence[float]) -> str:
    if not accuracies:
        return "-"
    return spread(accuracies) + (f" ({len(accuracies)})" if len(accuracies) > 1 else "")


def picture(lines: Sequence[Line], path: Path) -> None:
    """Draw a panel for each network that has runs of ours: the accuracy of every method, a mark for every size."""
    from matplotlib import rc_context
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    from mrfquant.reports.curves import LIGHT
    from mrfquant.reports.figures import MIN_LOG_RANGE, STYLE, png

    looks: dict[str, dict[str, Any]] = {"full size": {"marker": "o", "color": LIGHT[0], "markersize": 6}}
    looks["a quarter of the width"] = {"marker": "D", "color": LIGHT[1], "markersize": 6}
    looks[PAPER] = {"marker": "o", "color": "0.2", "markersize": 9, "fillstyle": "none"}
    networks = list(dict.fromkeys((line.dataset, line.model) for line in lines if line.ours))
    rows = (len(networks) + 1) // 2
    with rc_context(STYLE), png(path, 8, 2.5 * rows + 0.5) as figure:
        places = iter(figure.subplots(rows, 2, squeeze=False).flat)
        for network in networks:
            axes, own = next(places), [line for line in lines if (line.dataset, line.model) == network]
            methods = [column for column in SHOWN if any(column in line.accuracies for line in own)]
            for line in reversed(own):  # the paper's on top
                errors = {m: 100 - statistics.mean(line.accuracies[m]) for m in methods if m in line.accuracies}
                axes.plot(list(errors.values()), [methods.index(m) for m in errors], linestyle="", **looks[line.size])
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            wide = high > MIN_LOG_RANGE * low
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(5))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 - error:g}"))
            axes.invert_xaxis()
            axes.set_yticks(range(len(methods)), methods)
            axes.invert_yaxis()
            axes.set_title(f"{network[1]}, {network[0]}: test accuracy, %", fontsize=9, loc="left")
        for axes in places:
            axes.set_visible(False)
        handles = [Line2D([], [], linestyle="", label=size, **look) for size, look in looks.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
