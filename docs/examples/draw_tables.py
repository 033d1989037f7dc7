"""Tables of the guides as pictures: accuracy against bits, energy against time, ratios of steps and projections.

    python docs/examples/draw_tables.py FOLDER

Expected output: "rounding.png: 12 networks of 6 methods, 6 solvers; speed.png: 28 ratios"
"""

import re
import statistics
import sys
from pathlib import Path

from matplotlib import rc_context

from mrfquant.benchmarks.picture import write_picture
from mrfquant.reports.curves import LIGHT
from mrfquant.reports.figures import STYLE, png

GUIDES = Path(__file__).parents[1]
SCALES = 0.08  # bits a weight that the scales of ResNet-20's channels take
FLOAT = 91.73
MARKS = "osD^vP"


def table(guide, head):
    """Return the rows of the guide's table that begins so, heads first."""
    lines = (GUIDES / guide).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} "))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [
        [cell.strip(" *`") for cell in line.strip("|").split("|")] for line in lines[start:end] if "---" not in line
    ]


def mean(cell):
    """Return the mean of the accuracies in a cell, None if it has none."""
    found = [float(number) for number in re.findall(r"\d\d\.\d\d", cell)]
    return statistics.mean(found) if found else None


def accuracies():
    """Return {method: [(bits a weight with scales, test accuracy of ResNet-20)]}."""
    heads, *rows = table("rounding.md", "network, bits")
    found = {head.replace("`", ""): [] for head in heads[1:]}
    for row in rows:
        network, _, bits = row[0].rpartition(", ")
        for method, cell in zip(found, row[1:], strict=True):
            if network.startswith("ResNet-20") and mean(cell):
                found[method].append((int(bits) + SCALES, mean(cell)))
    paths = [row for row in table("trellis.md", "| levels: bits")[1:] if row[0].startswith(("ResNet-20", "the same"))]
    return {**found, "trellis paths": sorted((float(row[4]), mean(row[5].partition(",")[0])) for row in paths)}


def energies():
    """Return {solver: (time, energy)}, both relative to gptq's."""
    rows = table("rounding.md", "solver | time / gptq")[1:]
    return {re.sub(r" \(.*|,.*(?<!scales)$", "", name): (float(time), float(energy)) for name, time, energy in rows}


def ratios():
    """Return {title: {row: {column: ratio with quartiles}}}, as the benchmark draws its own."""
    titles = {
        "| float, ms": "Training step, against float",
        "| PARQ, 1 bit": "",
        "| mrfquant, ms": "Projections, against mrfquant",
    }
    found = {}
    for head, title in titles.items():
        heads, *rows = table("speed.md", head)
        panel = found.setdefault(title or next(iter(found)), {})
        for name, *cells in rows:
            for column, cell in zip(heads[1:], cells, strict=True):
                if ratio := re.fullmatch(r"([\d.]+)x(?: \(([\d.]+) \.\. ([\d.]+)\))?", cell):
                    keys = ("ratio", "low", "high")
                    read = {key: float(value) for key, value in zip(keys, ratio.groups(), strict=True) if value}
                    panel.setdefault(name, {})[column] = read
    return found


def draw_rounding(path, networks, solvers):
    """Draw accuracies against bits, and energies against time."""
    with rc_context(STYLE), png(path, 8.4, 3.4) as figure:
        left, right = figure.subplots(1, 2)
        for (method, points), mark, colour in zip(networks.items(), MARKS, LIGHT, strict=False):
            left.plot(*zip(*points, strict=True), mark, linestyle="-", linewidth=1, color=colour, label=method)
        left.axhline(FLOAT, color="0.4", linewidth=0.8, linestyle="--")
        left.annotate("float", (1, FLOAT), (0, 3), textcoords="offset points", fontsize=7, color="0.3")
        left.set_xticks([1, 2, 3])
        left.set_xlabel("bits a weight, with scales")
        left.set_ylabel("test accuracy of ResNet-20, %")
        left.legend(fontsize=7, loc="lower right")
        for number, (name, place) in enumerate(solvers.items()):
            right.plot(*place, "o", color=LIGHT[0])
            above = {"xytext": (2, -6 if number % 2 else 6), "va": "top" if number % 2 else "bottom"}
            name = name.replace("best order ", "best order\n")
            right.annotate(name, place, textcoords="offset points", fontsize=7, color="0.3", **above)
        right.set_xscale("log")
        right.set_xlim(0.15, 120)
        right.set_ylim(0.6, 2)
        right.set_xlabel("time of a layer / gptq's")
        right.set_ylabel("energy / gptq's")


if __name__ == "__main__":
    folder, networks, solvers, steps = Path(sys.argv[1]), accuracies(), energies(), ratios()
    draw_rounding(folder / "rounding.png", networks, solvers)
    write_picture(folder / "speed.png", steps)
    count = sum(len(columns) for panel in steps.values() for columns in panel.values())
    accurate = f"{sum(map(len, networks.values()))} networks of {len(networks)} methods"
    print(f"rounding.png: {accurate}, {len(solvers)} solvers; speed.png: {count} ratios")
