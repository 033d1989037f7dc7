"""Rounding one layer: every row of its weight matrix is a dense pairwise Markov random field with the same couplings.

The energy of labels is 1/2 sum over rows of (w - w°)ᵀ A (w - w°), where w° are the trained weights, w the chosen levels
and A = E[x xᵀ] the second moments of the layer's inputs: half the mean squared change of its outputs. The levels of a
row, or of a group of inputs within it, are those of the level set times a scale, plus an optional zero point; both are
fitted along with the labels.

Tensors are (n, rows), so that each operation on a variable covers all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FIELD_BLOCK = 64  # variables whose fields are computed by one matrix product
SCALE_GRID = torch.linspace(0.05, 1.2, 60)  # scales to try, in units of the largest weight over the largest level
ALL = slice(None)
ROW_TENSORS = ("w", "scale", "zero")  # tensors (n, rows) of a problem, or None


@dataclass(frozen=True)
class LayerProblem:
    """The rounding problem of a layer.

    Attributes:
        w: (n, rows) the trained weights w°.
        a: (n, n) second moments of the inputs, positive definite.
        levels: (d,) increasing.
        scale: (n, rows) the same within a group; positive unless it is `signed`.
        group: (n,) the number of each variable's group, from 0 on.
        zero: (n, rows) zero points, added to the scaled levels, the same within a group; None for none.
        stored: the type in which a file keeps scales and zero points; they only take values of that type.
    """

    w: Tensor
    a: Tensor
    levels: Tensor
    scale: Tensor
    group: Tensor
    zero: Tensor | None = None
    stored: torch.dtype = torch.float64

    @classmethod
    def from_weights(
        cls,
        w: Tensor,
        a: Tensor,
        levels: Tensor,
        group_size: int | None = None,
        zero_point: bool = False,
        stored: torch.dtype = torch.float64,
    ) -> LayerProblem:
        """Choose initial scales by grid search for nearest rounding, weighted by the diagonal of A.

        Groups are `group_size` neighbouring variables of a row, or all of them. With a zero point, the middle of the
        levels is the middle of a group's weights.
        """
        group = torch.arange(len(w), device=w.device) // (group_size or len(w))
        problem = cls(w, a, levels, torch.ones_like(w), group, torch.zeros_like(w) if zero_point else None, stored)
        none, index = w.new_zeros(problem.groups, w.shape[1]), group[:, None].expand_as(w)
        low, high = (none.scatter_reduce(0, index, w, way, include_self=False) for way in ("amin", "amax"))
        if zero_point:
            middle, unit = (low + high) / 2, (high - low) / (levels[-1] - levels[0])
        else:
            middle, unit = torch.zeros_like(low), torch.maximum(-low, high) / levels.abs().max()
        precision = torch.finfo(w.dtype)
        unit = unit.clamp(min=max(precision.eps * unit.max().item(), precision.tiny))  # for rows of zeros
        best, least = problem, torch.full_like(unit, torch.inf)
        grid = torch.cat([SCALE_GRID, -SCALE_GRID]) if problem.signed else SCALE_GRID
        for factor in grid.tolist():
            trial = problem.with_scales(unit * factor, middle - unit * factor * (levels[0] + levels[-1]) / 2)
            error = problem._sums(a.diagonal()[:, None] * (trial.values(trial.nearest(w)) - w).square())
            better = error < least
            least = torch.minimum(error, least)
            best = best._where(better[group], trial)
        return best

    @property
    def n(self) -> int:
        """Number of variables of a row."""
        return len(self.w)

    @property
    def groups(self) -> int:
        """Number of groups of variables in a row."""
        return int(self.group.max()) + 1

    @property
    def signed(self) -> bool:
        """Whether the sign of a scale matters: levels of both signs that are no mirror image of themselves."""
        return self.zero is None and not torch.equal(self.levels, -self.levels.flip(0))

    def choices(self, at: int | slice = ALL) -> Tensor:
        """Return the possible weights: (d, n, rows), or (d, rows) of one variable."""
        scale = self.scale[at]
        q = self.levels.view(-1, *[1] * scale.dim()) * scale
        return q if self.zero is None else q + self.zero[at]

    def values(self, labels: Tensor, at: int | slice = ALL) -> Tensor:
        """Return the weights of labels (n, rows), or (rows,) of one variable."""
        values = self.levels[labels] * self.scale[at]
        return values if self.zero is None else values + self.zero[at]

    def nearest(self, targets: Tensor, at: int | slice = ALL) -> Tensor:
        """Return the labels of the levels nearest to targets (n, rows), or (rows,) of one variable."""
        targets = targets if self.zero is None else targets - self.zero[at]
        return torch.bucketize(targets / self.scale[at], (self.levels[1:] + self.levels[:-1]) / 2)

    def energy(self, values: Tensor) -> Tensor:
        """Return the energy of each row, (rows,), for weights (n, rows)."""
        errors = values - self.w
        return (errors * (self.a @ errors)).sum(0) / 2

    def permuted(self, order: Tensor) -> LayerProblem:
        """Return the problem with its variables in another order."""
        moved = self._mapped(lambda part: part[order])
        return replace(moved, a=self.a[order][:, order], group=self.group[order])

    def rows(self, index: Tensor) -> LayerProblem:
        """Return the problem of some rows."""
        return self._mapped(lambda part: part[:, index])

    def with_rows(self, index: Tensor, part: LayerProblem) -> LayerProblem:
        """Return the problem with the scales and zero points that some rows have in another one."""
        zero = None if self.zero is None or part.zero is None else self.zero.index_copy(1, index, part.zero)
        return replace(self, scale=self.scale.index_copy(1, index, part.scale), zero=zero)

    def scaled(self, factors: Sequence[float]) -> LayerProblem:
        """Return a problem with all rows once for each factor of their scales."""
        each = self.w.new_tensor(factors).repeat_interleave(self.w.shape[1])
        many = self._mapped(lambda part: part.repeat(1, len(factors)))
        return replace(many, scale=self._as_stored(many.scale * each))

    def beside(self, other: LayerProblem) -> LayerProblem:
        """Return a problem with the rows of both, which have the same variables."""
        return self._mapped(lambda one, two: torch.cat([one, two], 1), other)

    def with_scales(self, scale: Tensor, zero: Tensor) -> LayerProblem:
        """Return the problem with other scales and zero points (groups, rows)."""
        scale, zero = self._as_stored(scale), self._as_stored(zero)
        return replace(self, scale=scale[self.group], zero=None if self.zero is None else zero[self.group])

    def refit_scales(self, labels: Tensor) -> LayerProblem:
        """Return the problem with least-squares scales and zero points for these labels.

        They are fitted for all groups of a row together. Rows keep theirs where a scale has the wrong sign, or where
        the type in which scales are stored takes away what they gain.
        """
        v = self.levels[labels]
        columns = [v] if self.zero is None else [v, torch.ones_like(v[:, :1])]
        groups, rows = self.groups, self.w.shape[1]
        gram = v.new_empty(len(columns), groups, len(columns), groups, rows)
        for g in range(groups):
            inside = (self.group == g).nonzero()[:, 0]
            for k, column in enumerate(columns):
                product = self.a[:, inside] @ column[inside]
                for i, other in enumerate(columns):
                    gram[i, :, k, g] = self._sums(other * product)
        aw = self.a @ self.w
        wanted = torch.stack([self._sums(column * aw) for column in columns])
        own = gram[0, :, 0].diagonal().T
        unused = own == 0  # groups with no level but 0 keep their scale
        own[unused], present = 1, torch.empty_like(wanted[0]).index_copy_(0, self.group, self.scale)
        found = _solved(gram.flatten(2, 3).flatten(0, 1), wanted.flatten(0, 1)).view(len(columns), groups, rows)
        found[0][unused] = present[unused]
        fitted = self.with_scales(found[0], found[-1])
        good = (fitted.scale != 0 if self.signed else fitted.scale > 0).all(0) & found.isfinite().all(0).all(0)
        if torch.finfo(self.stored).bits < torch.finfo(self.w.dtype).bits:
            good &= fitted.energy(fitted.values(labels)) < self.energy(self.values(labels))
        return self._where(good.expand_as(self.w), fitted)

    def sweep(self, values: Tensor, update: Callable[[int, Tensor], Tensor]) -> None:
        """Update values (n, rows), the weights or their means, one variable after the other.

        `update` takes a variable j and its field sum over i of A_ji (w_i - w°_i), (rows,), and returns w_j.
        """
        errors = values - self.w
        for start in range(0, self.n, FIELD_BLOCK):
            block = slice(start, min(self.n, start + FIELD_BLOCK))
            fields, among = self.a[block] @ errors, self.a[block, block]
            for k in range(len(fields)):
                j = start + k
                new = update(j, fields[k])
                change = new - values[j]
                values[j] = new
                errors[j] += change
                fields[k + 1 :].addr_(among[k + 1 :, k], change)

    def _mapped(self, function: Callable[..., Tensor], *others: LayerProblem) -> LayerProblem:
        """Apply a function to each tensor (n, rows) of this and other problems."""
        parts = {name: [getattr(problem, name) for problem in (self, *others)] for name in ROW_TENSORS}
        changed: dict[str, Any] = {name: function(*part) for name, part in parts.items() if part[0] is not None}
        return replace(self, **changed)

    def _as_stored(self, x: Tensor) -> Tensor:
        """Round scales or zero points to the type in which they are stored, if that is the coarser one."""
        if torch.finfo(self.stored).bits >= torch.finfo(x.dtype).bits:
            return x
        return x.to(self.stored).to(x.dtype)

    def _sums(self, x: Tensor) -> Tensor:
        """Sum x (n, rows) over the variables of each group: (groups, rows)."""
        return x.new_zeros(self.groups, x.shape[1]).index_add_(0, self.group, x)

    def _where(self, condition: Tensor, other: LayerProblem) -> LayerProblem:
        """Take the other's scales and zero points where the condition (n, rows) holds."""
        scale = torch.where(condition, other.scale, self.scale)
        if self.zero is None or other.zero is None:
            return replace(self, scale=scale)
        return replace(self, scale=scale, zero=torch.where(condition, other.zero, self.zero))


def _solved(gram: Tensor, wanted: Tensor) -> Tensor:
    """Solve gram (k, k, rows) x = wanted (k, rows) for x; nan in rows whose gram is singular."""
    factor, failed = torch.linalg.cholesky_ex(gram.permute(2, 0, 1).double())
    found = torch.cholesky_solve(wanted.T[:, :, None].double(), factor)[:, :, 0].to(wanted.dtype)
    return torch.where(failed[:, None] > 0, torch.nan, found).T
