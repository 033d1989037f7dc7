"""Three even levels on a line: u as a function of the weights, without its planes."""

from __future__ import annotations

import math
from functools import cached_property

from torch import Tensor

from mrfquant.labelling import Block
from mrfquant.projections import Line

EVEN = (-2.0, 0.0, 2.0)  # such levels, as a line has them
SMALLEST = 1e-12  # what is under the root where u is decided: t = 0 has the slope 0, any other ±1


class TernaryMeans:
    """u of softmax on the line of three even levels, by its mean t from -1 to 1.

    Let s = u_1 + u_3 be the probability of the outer levels; t = u_3 - u_1. On the line u_1 u_3 = k² u_2² for k =
    exp(-2 beta spacing), so with A = 4 k²

        s² - t² = A (1 - s)²,    s = (t² + A) / (A + r),    ds / dt = t / r,    r = sqrt(A + (1 - A) t²).

    As beta grows, A goes to 0 and s to abs(t). One root is all that a weight takes.

    Args:
        block: whose weights are on the line.
        line: of its levels.
        beta: the inverse temperature that the weights were computed with.
    """

    def __init__(self, block: Block, line: Line, beta: float) -> None:
        self.block, self.a = block, max(4 * math.exp(-4 * beta * line.spacing), SMALLEST)

    @cached_property
    def t(self) -> Tensor:
        """The mean (m,)."""
        return self.block.mean_of_weights()

    @cached_property
    def r(self) -> Tensor:
        """The root (m,)."""
        return self.t.square().mul_(1 - self.a).add_(self.a).sqrt_()

    def chance(self, label: int) -> Tensor:
        outer = self._outer()
        if label == 1:
            return outer.neg_().add_(1)
        return outer.add_(self.t, alpha=label - 1).div_(2)

    def slope(self, label: int) -> Tensor:
        slope = self.t / self.r
        slope = slope.neg_() if label == 1 else slope.add_(label - 1).div_(2)
        if self.block.levels.half_gap != 1:
            slope.div_(self.block.levels.half_gap)
        return slope if self.block.scale is None else slope.div_(self.block.scale)

    def _outer(self) -> Tensor:
        """s (m,)."""
        if abs(1 - self.a) > 0.1:
            return (self.r - self.a).div_(1 - self.a)  # the same, without t
        return self.t.square().add_(self.a).div_(self.r + self.a)
