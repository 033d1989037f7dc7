"""A line of auxiliary variables, for ordered labels: one number a variable, whatever the number of labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 2**18  # variables of a line whose planes are made at once: they need memory for a moment only
NEGLIGIBLE = 1e-30  # a probability that no sum of them notices


class Line:
    """The line ũ_λ = a p_λ - s p_λ² / 2 through R^d, for levels p from -(d - 1) to d - 1, 2 apart on average.

    softmax takes it to u ∝ exp(-beta s (a / s - p)² / 2), the normal distribution around a / s on the levels: an
    exponential family whose largest u is that of the level nearest to a / s. For two levels, p = (-1, 1), the square
    plays no role and a is the pair form's ã, whatever s is.

    A gradient v on ũ moves a by what comes closest to moving ũ: <p, v> / <p, p>, p less its mean. A gradient v on u is
    one on t, since on the line a function of u is one of t: p_d Cov(p, v) / Var(p) under u, the slope of v over p.

    Args:
        levels: (d,) increasing, in any unit.
        spacing: s, half the distance in a between neighbouring levels.
    """

    def __init__(self, levels: Tensor, spacing: float) -> None:
        low, high = levels[0], levels[-1]
        self.top = len(levels) - 1
        self.p = (levels - (low + high) / 2) * (2 * self.top / (high - low))
        self.spacing = spacing
        self.shift = -spacing / 2 * self.p.square()
        self.midpoints = spacing * (self.p[1:] + self.p[:-1]) / 2
        self.centred = self.p - self.p.mean()
        self.centre = self.p.mean().item() / self.top  # of t
        self.square = self.centred.square().sum().item()
        self.levels = tuple(self.p.tolist())
        self.grid = _grid(self.levels)

    @property
    def is_pair(self) -> bool:
        """Whether there are two levels: t = u_2 - u_1, and `spacing` plays no role."""
        return self.top == 1

    def planes(self, a: Tensor) -> Tensor:
        """Return ũ (d, m) of a (m,)."""
        return torch.addcmul(self.shift[:, None], self.p[:, None], a)

    def pull_back(self, v: Tensor) -> Tensor:
        """Return the gradient with respect to a (m,) of one with respect to ũ (d, m)."""
        return torch.mv(v.t(), self.centred).div_(self.square)

    def slope(self, a: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return the gradient with respect to t (m,) of what has the gradient v (d, m) with respect to u of a (m,).

        Where u is decided, it is the slope from its label to the one that comes next.
        """
        likeliest = self.planes(a).topk(2, 0).indices
        first, second = likeliest[:1], likeliest[1:]
        # From the likeliest label, so that nothing is lost where the others have next to nothing of u.
        p, v = self.p[:, None] - self.p[first], v - v.gather(0, first)
        u = u.scatter_add(0, second, torch.full_like(u[:1], NEGLIGIBLE))
        up, mean = u * p, (u * p).sum(0)
        covariance, variance = (up * v).sum(0) - mean * (u * v).sum(0), (up * p).sum(0) - mean * mean
        return covariance.div_(variance).mul_(self.top)

    def mean(self, u: Tensor) -> Tensor:
        """Return t (m,) of u (d, m)."""
        return torch.mv(u.t(), self.p).div_(self.top)

    def labels(self, a: Tensor) -> Tensor:
        """Return the label of the largest ũ, the first of equals: int32 (m,)."""
        return torch.bucketize(a, self.midpoints, out_int32=True)


def _grid(levels: Sequence[float]) -> int:
    """Return the number of equal steps into which levels cut the line from -x to x; 0 if they are not even."""
    steps = [high - low for low, high in itertools.pairwise(levels)]
    whole = [step / min(steps) for step in steps]
    symmetric = all(abs(low + high) < 1e-4 for low, high in zip(levels, reversed(levels), strict=True))
    on_grid = all(abs(count - round(count)) < 1e-4 for count in whole)
    return round(sum(whole)) if symmetric and on_grid else 0
