"""The tables of the guides to rounding as a picture: accuracy against bits, energy against time.

    python docs/examples/draw_rounding.py rounding.png

Expected output: "rounding.png: 12 networks of 6 methods, 6 solvers"
"""

import re
import statistics
import sys
from pathlib import Path

from matplotlib import rc_context

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


if __name__ == "__main__":
    path, networks, solvers = Path(sys.argv[1]), accuracies(), energies()
    with rc_context(STYLE), png(path, 8.4, 3.4) as figure:
        left, right = figure.subplots(1, 2)
        for (method, points), mark, colour in zip(networks.items(), MARKS, LIGHT, strict=False):
            left.plot(*zip(*points, strict=True), mark, linestyle="-", linewidth=1, color=colour, label=method)
        left.axhline(FLOAT, color="0.4", linewidth=0.8, linestyle="--")
        left.annotate("float", (1, FLOAT), (0, 3), textcoords="offset points", fontsize=7, color="0.3")
        left.set(xticks=[1, 2, 3], xlabel="bits a weight, with scales", ylabel="test accuracy of ResNet-20, %")
        left.legend(fontsize=7, loc="lower right")
        for number, (name, place) in enumerate(solvers.items()):
            right.plot(*place, "o", color=LIGHT[0])
            side = {"xytext": (2, -6), "va": "top"} if number % 2 else {"xytext": (2, 6), "va": "bottom"}
            text = name.replace("order ", "order\n")
            right.annotate(text, place, textcoords="offset points", fontsize=7, color="0.3", **side)
        right.set(xscale="log", xlim=(0.15, 120), ylim=(0.6, 2))
        right.set(xlabel="time of a layer / gptq's", ylabel="energy / gptq's")
    print(f"{path}: {sum(map(len, networks.values()))} networks of {len(networks)} methods, {len(solvers)} solvers")
