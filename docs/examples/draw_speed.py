"""The tables of the guide to speed as a picture, drawn as `mrfquant bench --png` draws what it measures.

    python docs/examples/draw_speed.py speed.png

Expected output: "speed.png: 28 ratios"
"""

import re
import sys
from pathlib import Path

from mrfquant.benchmarks.picture import write_picture

GUIDE = Path(__file__).parents[1] / "speed.md"
STEPS, PROJECTIONS = "Training step, against float", "Projections, against mrfquant"
TABLES = {"float, ms | d=2": STEPS, "PARQ, 1 bit": STEPS, "mrfquant, ms": PROJECTIONS}  # by their heads
RATIO = re.compile(r"([\d.]+)x(?: \((\d[\d.]*?)\.\.(\d[\d.]*)\))?")


def table(head):
    """Return the rows of the guide's table that has this head, the heads first."""
    lines = GUIDE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| | {head} "))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end] if "---" not in line]


def ratios():
    """Return {title: {row: {column: ratio with quartiles}}}."""
    found = {title: {} for title in TABLES.values()}
    for head, title in TABLES.items():
        heads, *rows = table(head)
        for name, *cells in rows:
            for column, cell in zip(heads[1:], cells, strict=True):
                if ratio := RATIO.fullmatch(cell):
                    figures = zip(("ratio", "low", "high"), ratio.groups(), strict=True)
                    found[title].setdefault(name, {})[column] = {key: float(v) for key, v in figures if v}
    return found


if __name__ == "__main__":
    panels = ratios()
    write_picture(Path(sys.argv[1]), panels)
    print(f"{sys.argv[1]}: {sum(len(row) for panel in panels.values() for row in panel.values())} ratios")
