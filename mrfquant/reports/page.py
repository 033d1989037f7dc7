"""The comparison as one HTML page: no library, no network; the data lie in it as JSON."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from mrfquant.reports.curves import DARK, LIGHT, Curve, panel_curves, panels_of, style
from mrfquant.reports.groups import NONE, Group
from mrfquant.reports.tables import result_rows, setting_rows, test_head

HERE = Path(__file__).parent
NUMBER = ' class="number"'


def page(groups: Sequence[Group], by: Sequence[str] | None, notes: Sequence[str] = ()) -> str:
    """Return the page with `notes` below the results; what runs say is escaped, and no script but ours may run."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    count, data = sum(len(group.runs) for group in groups), page_data(groups)
    thin = any(curve["thin"] for panel in data["panels"] for curve in panel["curves"])
    grouped = f"{len(groups)} group{'' if len(groups) == 1 else 's'} by {', '.join(by or ['configuration'])}"
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=f"{count} run{'' if count == 1 else 's'} compared",
        subtitle=escape(f"{grouped}; {datetime.now():%d %B %Y, %H:%M}"),
        css=(HERE / "page.css").read_text(encoding="utf-8") + _colours(),
        results=_results(groups, by),
        notes=_notes(groups, notes),
        thin=" Thin lines are the relaxed networks, before rounding." if thin else "",
        legend=_legend(groups),
        settings=_settings(groups),
        runs=_runs(groups),
        data=embedded(data),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def embedded(value: Any) -> str:
    """Return JSON that cannot end the script element it lies in, whatever strings it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return what page.js draws: the groups, and the panels with their curves."""
    panels = []
    for panel in panels_of(groups):
        curves = panel_curves(panel, groups)
        if not curves:
            continue
        drawn = [
            {"group": number, "thin": thin, "dash": style(number)[1], **_numbers(curve)}
            for number, thin, curve in curves
        ]
        panels.append({"title": panel.title, "scale": panel.scale, "curves": drawn})
    return {"groups": [{"label": g.label, "colour": style(i)[0]} for i, g in enumerate(groups)], "panels": panels}


def _numbers(curve: Curve) -> dict[str, list[float]]:
    """Return the curve with six digits, which is more than can be seen."""
    rounded = {key: [float(f"{v:.6g}") for v in getattr(curve, key)] for key in ("mean", "low", "high")}
    return {"x": curve.iterations.astype(np.int64).tolist(), **rounded}


def _colours() -> str:
    light, dark = ("".join(f".c{i} {{ --c: {c}; }}\n" for i, c in enumerate(colours)) for colours in (LIGHT, DARK))
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _swatch(number: int) -> str:
    colour, dash = style(number)
    pattern = f' stroke-dasharray="{" ".join(f"{2.5 * n:g}" for n in dash)}"' if dash else ""
    line = f'<line x1="0" x2="24" y1="4" y2="4"{pattern}/>'
    return f'<svg class="swatch c{colour}" viewBox="0 0 24 8" aria-hidden="true">{line}</svg>'


def _legend(groups: Sequence[Group]) -> str:
    buttons = (
        f'<button type="button" data-group="{i}" aria-pressed="true">{_swatch(i)}{escape(group.label)}</button>'
        for i, group in enumerate(groups)
    )
    return "\n".join([*buttons, '<button type="button" class="all">hide all</button>'])


def _results(groups: Sequence[Group], by: Sequence[str] | None) -> str:
    heads, *rows = result_rows(groups, by)
    test = heads.index(test_head(groups))
    text = test - 1  # the columns before the statistics, which begin with the seeds
    head = "".join(
        f"<th{' colspan=2' if i == test else NUMBER if i >= text else ''}>{escape(cell)}</th>"
        for i, cell in enumerate(heads)
    )
    body = []
    for number, row in enumerate(rows):
        cells = [f"<td>{row[0]}{_swatch(number)}</td>", *(f"<td>{_cell(cell)}</td>" for cell in row[1:text])]
        for column, cell in enumerate(row[text:], text):
            mean, _, spread = cell.partition(" +- ")
            cells.append(f"<td{NUMBER}>{_cell(mean)}</td>")
            if column == test:  # the spread in a cell of its own, so that the means stand in line
                cells.append(f'<td class="spread">{"± " * bool(spread)}{spread}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return _table("results", head, body, "Results")


def _notes(groups: Sequence[Group], notes: Sequence[str]) -> str:
    unfinished = [f"{run.name} is {run.state}" for group in groups for run in group.runs if not run.finished]
    if unfinished:
        more = f" and {len(unfinished) - 5} more" if len(unfinished) > 5 else ""
        notes = [f"Unfinished, in the curves and not in the means: {'; '.join(unfinished[:5])}{more}.", *notes]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _cell(cell: str) -> str:
    return '<span class="none">-</span>' if cell == NONE else escape(cell)


def _table(kind: str, head: str, body: Sequence[str], name: str) -> str:
    """Return a table that scrolls inside its own box, by keyboard, too."""
    rows = "\n".join(body)
    table = f'<table class="{kind}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def _settings(groups: Sequence[Group]) -> str:
    heads, *rows = setting_rows(groups)
    if not rows:
        return "<p>None: the runs differ in nothing but their seeds.</p>"
    head = "<th></th>" + "".join(f"<th>{cell}{_swatch(i)}</th>" for i, cell in enumerate(heads[1:]))
    body = []
    for name, *cells in rows:
        values = "".join(f"<td>{_cell(cell)}</td>" for cell in cells)
        body.append(f"<tr><th><code>{escape(name).replace('.', '.<wbr>')}</code></th>{values}</tr>")
    return _table("fixed", head, body, "Settings that differ")


def _runs(groups: Sequence[Group]) -> str:
    body = []
    for number, group in enumerate(groups, 1):
        for run in group.runs:
            figure = group.metric.number(run.fields[f"test_{group.metric.name}"]) if run.finished else NONE
            seed = escape(str(run.fields.get("seed", NONE)))
            cells = f"<td>#{number}</td><td>{seed}</td><td{NUMBER}>{_cell(figure)}</td><td>{escape(run.state)}</td>"
            body.append(f"<tr>{cells}<td>{escape(run.name)}</td></tr>")
    head = f"<th>group</th><th>seed</th><th{NUMBER}>{escape(test_head(groups))}</th><th>state</th><th>folder</th>"
    return _table("runs", head, body, "Runs")
