"""Three even levels on a line: u as a function of the weights, without its planes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrfquant.kernels import dispatch
from mrfquant.labelling import Block
from mrfquant.projections import Line

EVEN = (-2.0, 0.0, 2.0)  # such levels, as a line has them
SMALLEST = 1e-12  # what is under the root where u is decided: t = 0 has the slope 0, any other ±1


class TernaryMeans:
    """u of softmax on the line of three even levels, by its mean t from -1 to 1.

    Let s = u_1 + u_3 be the probability of the outer levels; t = u_3 - u_1. On the line u_1 u_3 = k² u_2² for k =
    exp(-2 beta spacing), so with A = 4 k²

        s² - t² = A (1 - s)²,    r = sqrt(A + (1 - A) t²),    s = (t² + A) / (r + A),    ds / dt = t / r,

    and u_2 = 1 - s = (1 - r) / (1 - A). As beta grows, A goes to 0 and s to abs(t). A weight takes one root.

    Args:
        block: whose weights are on the line.
        line: of its levels.
    """

    def __init__(self, block: Block, line: Line) -> None:
        self.block, self.spacing = block, line.spacing
        self._places: list[tuple[Tensor, Tensor]] = []  # kept: new memory takes more time than what is written to it

    def at(self, beta: float) -> TernaryMeans:
        """The same for weights that were computed with this beta; what was given out before may be overwritten."""
        self.a, self._given = max(4 * math.exp(-4 * beta * self.spacing), SMALLEST), 0
        return self

    def chance(self, label: int) -> tuple[Tensor, Tensor]:
        if self._given == len(self._places):
            self._places.append((torch.empty_like(self.block.w), torch.empty_like(self.block.w)))
        chance, slope = self._places[self._given]
        self._given += 1
        t, a = self.block.mean_of_weights(), self.a
        far = abs(1 - a) > 0.1  # from where 1 - A is no divisor
        if far and dispatch.usable(t, chance, slope):
            dispatch.ternary_middle(t, a, chance, slope)
        else:
            r = (t * t * (1 - a)).add_(a).sqrt_()
            torch.div(t, r, out=slope).neg_()
            torch.div(1 - r if far else r - t * t, 1 - a if far else r + a, out=chance)
        if label != 1:  # u_1 and u_3 are (s - t) / 2 and (s + t) / 2
            side = label - 1
            chance.neg_().add_(1).add_(t, alpha=side).div_(2)
            slope.neg_().add_(side).div_(2)
        if self.block.levels.half_gap != 1:
            slope.div_(self.block.levels.half_gap)
        return chance, slope if self.block.scale is None else slope.div_(self.block.scale)
