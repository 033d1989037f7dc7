"""The report on a rounded language model as one HTML file: no script, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mrfquant.language.rounding import RoundedLanguageModel
from mrfquant.text import duration

HEIGHT = 160  # of a chart
STYLE = """body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
:root { color-scheme: light dark; --bar: light-dark(#2a6f97, #7cc0e8); --line: #8888; }
svg { width: 100%; height: 160px; display: block; } rect { fill: var(--bar); }
line { stroke: var(--line); vector-effect: non-scaling-stroke; }
table { border-collapse: collapse; } th, td { padding: .1rem .8rem .1rem 0; text-align: left; }
td + td, th + th { text-align: right; }"""


def page(result: RoundedLanguageModel) -> str:
    """Return the page."""
    layers = [layer for block in result.blocks for layer in block.layers]
    rows = [
        [f"{block.name}.{layer.name}", f"{layer.rows:,} x {layer.n:,}", f"{layer.relative:.3f}", f"{layer.seconds:.1f}"]
        for block in result.blocks
        for layer in block.layers
    ]
    facts = [
        ["perplexity", f"{result.perplexity:.2f}", f"{result.float_perplexity:.2f} in float"],
        ["file", f"{result.size:,} bytes", f"{2 * result.parameters:,} in float16"],
        ["rounded weights", f"{result.weights:,}", f"of {result.parameters:,} parameters"],
        ["bits of one", f"{result.bits:g}", "with scales"],
        ["time", duration(result.seconds), ""],
    ]
    energies = _bars([(row[0], layer.relative) for row, layer in zip(rows, layers, strict=True)], line=1.0)
    drifts = _bars([(block.name, block.drift) for block in result.blocks])
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    parts = [
        f"<h1>{escape(result.file.name)}</h1>{_table([], facts)}",
        f"<h2>Energy of each layer, gptq's being 1 (the line)</h2>{energies}",
        f"<h2>How far each block's outputs are from the float model's, squared, relative</h2>{drifts}",
        f"<h2>Layers with few inputs</h2><ul>{notes}</ul>" if notes else "",
        f"<h2>Layers</h2>{_table(['layer', 'rows x weights', 'energy / gptq', 'seconds'], rows)}",
    ]
    head = f'<meta charset="utf-8"><title>{escape(result.file.name)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(parts)}</body></html>\n'


def _bars(values: Sequence[tuple[str, float]], line: float | None = None) -> str:
    """Return a chart with a bar for each (name, value)."""
    top = 1.05 * max([line or 0, *(value for _, value in values)], default=1) or 1
    bars = []
    for place, (name, value) in enumerate(values):
        high = HEIGHT * value / top
        told = f"<title>{escape(name)}: {value:.3f}</title>"
        bars.append(f'<rect x="{place + 0.1}" y="{HEIGHT - high:.1f}" width="0.8" height="{high:.1f}">{told}</rect>')
    if line is not None:
        y = HEIGHT * (1 - line / top)
        bars.append(f'<line x1="0" x2="{len(values)}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return f'<svg viewBox="0 0 {len(values)} {HEIGHT}" preserveAspectRatio="none">{"".join(bars)}</svg>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in heads)}</tr>" if heads else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"
