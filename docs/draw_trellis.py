"""The picture of trellis.md: the best path through a trellis over a row of weights.

python docs/draw_trellis.py docs/trellis.png
"""

import sys

import torch

import mrfquant as mq
from mrfquant.pairwise.paths import best_paths
from mrfquant.reports.figures import png

LENGTH = 12


def main(path: str) -> None:
    """Draw weights, levels, what may follow each state, and the path."""
    levels = mq.Trellis(bits=2, memory=6)
    x = torch.randn(LENGTH, 1, generator=torch.Generator().manual_seed(7)).clamp(-2, 2)
    states = best_paths(x, torch.ones_like(x), levels.table, levels.bits)[:, 0]
    chosen = levels.table[states]
    with png(path, 9, 4.2, dpi=130) as figure:
        axes = figure.add_subplot()
        for t in range(LENGTH):
            axes.plot([t] * len(levels), levels.values, ".", color="#cccccc", markersize=3)
        for t in range(1, LENGTH):
            prefix = int(states[t - 1]) & (levels.shared - 1)
            for state in range(prefix * levels.branches, (prefix + 1) * levels.branches):
                ends = [chosen[t - 1], levels.table[state]]
                axes.plot([t - 1, t], ends, "-", color="#bbccee", linewidth=0.8, zorder=1)
                axes.plot(t, levels.table[state], "o", color="#99aadd", markersize=4)
        axes.plot(range(LENGTH), chosen, "o-", color="#4477aa", linewidth=2, label="the path: levels that are stored")
        axes.plot(range(LENGTH), x[:, 0], "x", color="#cc3311", markersize=8, mew=2, label="the weights")
        axes.set_xticks(range(LENGTH), [f"{int(s) % levels.branches:02b}" for s in states])
        axes.set_xlabel("two new bits for each weight; thin lines: the four levels that they can choose from")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


if __name__ == "__main__":
    main(sys.argv[1])
