"""What rounding needs to know of a layer and of a batch norm, gathered on the float and the rounded network at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.pairwise.curvature import damped
from mrfquant.rounding.products import Form
from mrfquant.rounding.watch import Use


def pairs(exact: list[Use], present: list[Use]) -> Iterator[tuple[Use | None, Use]]:
    """The uses by the rounded network, each with that of the float one, or None where that has other inputs."""
    alike = len(exact) == len(present)
    for number, use in enumerate(present):
        same = alike and not use.routed and exact[number].inputs.shape == use.inputs.shape
        yield (exact[number] if same else None), use


def shortcut_error(exact: Use, present: Use) -> Tensor | None:
    """What the rounded network's shortcut lacks of the float one's, as a change of the use's output, whose sum with
    the shortcut would then be right."""
    if exact.shortcut is None or present.shortcut is None or exact.shortcut.shape != present.shortcut.shape:
        return None
    assert present.back is not None
    return present.back(exact.shortcut - present.shortcut)


@dataclass
class Rows:
    """Sums over the inputs that some rows of a weight see.

    Attributes:
        a: (n, n) sum of x xᵀ, x being the inputs in the rounded network.
        t: (rows, n) sum of y xᵀ, y being the outputs to reach, without the bias.
        inputs: how many there were.
    """

    a: Tensor
    t: Tensor
    inputs: int = 0

    def curvature(self, damping: float) -> Tensor:
        """E[x xᵀ], damped."""
        return damped(self.a / self.inputs, damping)

    def targets(self, w: Tensor, curvature: Tensor) -> Tensor:
        """The weights (rows, n) that minimise E|w x - y|², drawn to the trained ones by the damping: w plus
        (E[y xᵀ] - w E[x xᵀ]) times the inverse of the damped curvature."""
        factor = torch.linalg.cholesky(curvature.double())
        missing = (self.t - w @ self.a) / self.inputs
        return w + torch.cholesky_solve(missing.double().T, factor).T.to(w.dtype)


class Moments:
    """Of a weight.

    Args:
        name: of the weight.
        weight: as trained.
        batches: how many there will be.
        generator: draws the pixels that are looked at.
    """

    def __init__(self, name: str, weight: Tensor, batches: int, generator: torch.Generator) -> None:
        self.name, self.weight, self.batches, self.generator = name, weight, batches, generator
        self.form = Form()
        self._rows: dict[tuple[int, int], Rows] = {}

    @property
    def w(self) -> Tensor:
        """(rows, n) the trained weights."""
        return self.form.matrix(self.weight).to(torch.promote_types(self.weight.dtype, torch.float32))

    def add(self, exact: Use | None, present: Use) -> None:
        """Count a use; without one of the float network, the trained weights tell what to reach."""
        product = present.product
        assert product is not None
        if not present.inputs.isfinite().all():
            raise BadInput(f"the inputs of {self.name} are not finite: the trained network or the batches are broken")
        self.form = product.form
        w = self.w
        positions = product.positions(self.batches, self.generator)
        columns = product.columns(positions).to(w.dtype)
        outputs = None if exact is None else self._outputs(exact, present, positions)
        rows = product.rows // len(columns)
        for group, x in enumerate(columns):
            first = product.first + group * rows
            span = slice(first, first + rows)
            if (first, first + rows) not in self._rows:
                self._rows[first, first + rows] = Rows(w.new_zeros(w.shape[1], w.shape[1]), torch.zeros_like(w[span]))
            sums = self._rows[first, first + rows]
            y = x @ w[span].T if outputs is None else outputs[:, group * rows : (group + 1) * rows]
            sums.a += x.T @ x
            sums.t += y.T @ x
            sums.inputs += len(x)

    def parts(self) -> Iterator[tuple[slice, Rows]]:
        """The rows that see the same inputs: all of them but for groups, and for attention to something else. Rows
        that no input of the rounded network reaches are as if each of their inputs was one by itself."""
        w = self.w
        ends = sorted({0, len(w)}.union(*self._rows))
        for first, last in itertools.pairwise(ends):
            found = [(span, sums) for span, sums in self._rows.items() if span[0] <= first and last <= span[1]]
            if found:
                a = torch.stack([sums.a for _, sums in found]).sum(0)
                t = torch.stack([sums.t[first - span[0] : last - span[0]] for span, sums in found]).sum(0)
                yield slice(first, last), Rows(a, t, sum(sums.inputs for _, sums in found))
            else:
                yield slice(first, last), Rows(torch.eye(w.shape[1]).to(w), w[first:last], 1)

    def _outputs(self, exact: Use, present: Use, positions: Tensor) -> Tensor:
        """(columns, rows) the float network's, without the bias, and what makes up for the shortcut's error."""
        product = exact.product
        assert product is not None
        y = product.at(product.output, positions).to(self.w.dtype)
        if product.bias is not None:
            y = y - product.bias
        error = shortcut_error(exact, present)
        return y if error is None else y + product.at(error, positions)


class NormStatistics:
    """Mean and variance of a batch norm's inputs in both networks, by channel."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self._sums = torch.zeros(2, 3, channels, dtype=torch.float64, device=device)

    def add(self, exact: Use | None, present: Use) -> None:
        """Count a use, if the float network has the same one."""
        if exact is None:
            return
        for sums, x in zip(self._sums, (exact.inputs, present.inputs), strict=True):
            values = x.transpose(0, 1).flatten(1)
            sums[0] += values.shape[1]
            sums[1] += values.sum(1, dtype=sums.dtype)
            sums[2] += values.square().sum(1, dtype=sums.dtype)

    def transfer(self, norm: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
        """Change the norm's statistics as rounding changes them on the batches: with k the ratio of the standard
        deviations, they become mean k + E[rounded] - E[float] k and variance k². Unlike an estimate on the batches
        alone, this keeps what the statistics owe to the data that they were trained on, such as its augmentation.

        Args:
            norm: to change.
            mean: of the trained norm.
            variance: of the trained norm.
        """
        count, total, squares = self._sums.unbind(1)
        means = total / count.clamp(min=1)
        before, after = (squares / count.clamp(min=1) - means.square()).clamp(min=0)
        usual = (before > 0) & (after > 0)
        k = torch.where(usual, after / torch.where(usual, before, 1.0), 1.0).sqrt()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean * k + means[1] - means[0] * k)
        norm.running_var.copy_(variance * k.square())
