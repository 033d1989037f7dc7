"""Rounding one layer: every row of its weight matrix is a dense pairwise Markov random field, and all rows share it.

The energy of labels is 1/2 sum over rows of (w - w°)ᵀ A (w - w°), where w° are the trained weights, w the levels chosen
and A = E[x xᵀ] the second moments of the layer's inputs: half the mean squared change of its outputs. The levels of a
row are those of the level set times the row's scale, which is fitted along with the labels.

Variables come first and rows last, (n, rows): what is done for one variable is done for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

BLOCK = 64  # variables whose fields are computed by one matrix product
GRID = torch.linspace(0.05, 1.2, 60)  # scales to try, in units of the largest weight over the largest level


@dataclass(frozen=True)
class LayerProblem:
    """The field of a layer.

    Attributes:
        w: (n, rows) the trained weights w°.
        a: (n, n) second moments of the inputs, positive definite.
        levels: (d,) increasing.
        scale: (rows,) positive.
    """

    w: Tensor
    a: Tensor
    levels: Tensor
    scale: Tensor

    @classmethod
    def of(cls, w: Tensor, a: Tensor, levels: Tensor) -> LayerProblem:
        """With the scales that suit rounding to the nearest level, weighed by the diagonal of A."""
        importance = a.diagonal()[:, None]
        unit = w.abs().amax(0) / levels.abs().max()
        precision = torch.finfo(w.dtype)
        unit = unit.clamp(min=max(precision.eps * unit.max().item(), precision.tiny))  # for rows of zeros
        best, least = unit, torch.full_like(unit, torch.inf)
        for factor in GRID.tolist():
            trial = cls(w, a, levels, unit * factor)
            error = (importance * (trial.values(trial.nearest(w)) - w).square()).sum(0)
            best, least = torch.where(error < least, trial.scale, best), torch.minimum(error, least)
        return cls(w, a, levels, best)

    @property
    def n(self) -> int:
        """Variables of a row."""
        return len(self.w)

    @property
    def q(self) -> Tensor:
        """(d, rows) the levels of each row."""
        return self.levels[:, None] * self.scale

    def values(self, labels: Tensor) -> Tensor:
        """The weights (k, rows) that labels (k, rows) stand for."""
        return self.levels[labels] * self.scale

    def energy(self, values: Tensor) -> Tensor:
        """The energy of each row, (rows,), for weights (n, rows)."""
        errors = values - self.w
        return (errors * (self.a @ errors)).sum(0) / 2

    def nearest(self, targets: Tensor) -> Tensor:
        """The labels of the levels nearest to targets (..., rows), the lower of equals."""
        return torch.bucketize(targets / self.scale, (self.levels[1:] + self.levels[:-1]) / 2)

    def permuted(self, order: Tensor) -> LayerProblem:
        """The same problem with its variables in another order."""
        return replace(self, w=self.w[order], a=self.a[order][:, order])

    def rows(self, index: Tensor) -> LayerProblem:
        """The problem of some rows only."""
        return replace(self, w=self.w[:, index], scale=self.scale[index])

    def rescaled(self, labels: Tensor) -> LayerProblem:
        """With the best scale of each row for these labels; rows for which it would not be positive keep theirs."""
        v = self.levels[labels]
        av = self.a @ v
        ratio = (av * self.w).sum(0) / (av * v).sum(0).clamp(min=torch.finfo(v.dtype).tiny)
        return replace(self, scale=torch.where(ratio > 0, ratio, self.scale))

    def sweep(self, values: Tensor, update: Callable[[int, Tensor], Tensor]) -> None:
        """Give the variables new values from the first to the last, each knowing those before it.

        Args:
            values: (n, rows) the present weights or their means, changed in place.
            update: called with a variable j and its field sum over i of A_ji (w_i - w°_i), (rows,); gives w_j.
        """
        errors = values - self.w
        for start in range(0, self.n, BLOCK):
            block = slice(start, min(self.n, start + BLOCK))
            fields, among = self.a[block] @ errors, self.a[block, block]
            for k in range(len(fields)):
                j = start + k
                new = update(j, fields[k])
                change = new - values[j]
                values[j] = new
                errors[j] += change
                fields[k + 1 :].addr_(among[k + 1 :, k], change)
