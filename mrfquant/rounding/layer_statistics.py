"""Statistics of layers and batch norms, collected on the float and the rounded network at once."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.pairwise.curvature import damped
from mrfquant.rounding.products import Form
from mrfquant.rounding.watch import Use


@dataclass
class RowStatistics:
    """Sums over the inputs of some rows of a weight."""

    a: Tensor  # (n, n) sum of x xᵀ, x being the inputs in the rounded network
    t: Tensor  # (rows, n) sum of y xᵀ, y being the target outputs without the bias
    inputs: int = 0  # 0: no input reaches the rows, and A is I

    def curvature(self, damping: float) -> Tensor:
        """Return E[x xᵀ], damped."""
        return damped(self.a / max(1, self.inputs), damping)

    def targets(self, w: Tensor, curvature: Tensor) -> Tensor:
        """Return w + (E[y xᵀ] - w E[x xᵀ]) curvature⁻¹: the weights (rows, n) that minimise E|w x - y|², damped."""
        factor = torch.linalg.cholesky(curvature.double())
        missing = (self.t - w @ self.a) / max(1, self.inputs)
        return w + torch.cholesky_solve(missing.double().T, factor).T.to(w.dtype)


class LayerStatistics:
    """Second moments of a weight's inputs and cross moments with its target outputs, over some batches.

    The generator draws the output pixels that are used.
    """

    def __init__(self, name: str, weight: Tensor, batches: int, generator: torch.Generator) -> None:
        self.name, self.weight, self.batches, self.generator = name, weight, batches, generator
        self.form = Form()
        self._rows: dict[tuple[int, int], RowStatistics] = {}

    @property
    def w(self) -> Tensor:
        """The trained weights (rows, n)."""
        return self.form.matrix(self.weight).to(torch.promote_types(self.weight.dtype, torch.float32))

    def add(self, exact: Use | None, present: Use) -> None:
        """Add a use; without one by the float network, the targets are the outputs of the trained weights."""
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
            part = w[first : first + rows]
            if (span := (first, first + rows)) not in self._rows:
                self._rows[span] = RowStatistics(w.new_zeros(w.shape[1], w.shape[1]), torch.zeros_like(part))
            sums = self._rows[span]
            y = x @ part.T if outputs is None else outputs[:, group * rows : (group + 1) * rows]
            sums.a += x.T @ x
            sums.t += y.T @ x
            sums.inputs += len(x)

    def parts(self) -> Iterator[tuple[slice, RowStatistics]]:
        """Yield the rows that share inputs, and their sums.

        All rows, except in grouped convolutions and cross-attention. Rows that no input reaches get A = I.
        """
        w = self.w
        ends = sorted({0, len(w)}.union(*self._rows))
        for first, last in itertools.pairwise(ends):
            found = [(span, sums) for span, sums in self._rows.items() if span[0] <= first and last <= span[1]]
            if found:
                a = torch.stack([sums.a for _, sums in found]).sum(0)
                t = torch.stack([sums.t[first - span[0] : last - span[0]] for span, sums in found]).sum(0)
                yield slice(first, last), RowStatistics(a, t, sum(sums.inputs for _, sums in found))
            else:
                yield slice(first, last), RowStatistics(torch.eye(w.shape[1]).to(w), w[first:last])

    def _outputs(self, exact: Use, present: Use, positions: Tensor) -> Tensor:
        """Return the outputs (columns, rows) of the float network without the bias.

        They are corrected for the error of the rounded network's shortcut, so that the sum with that shortcut is right.
        """
        product = exact.product
        assert product is not None
        y = product.at(product.output, positions).to(self.w.dtype)
        if (bias := product.given.get("bias")) is not None:
            y = y - bias
        wanted, found = exact.shortcut, present.shortcut
        if wanted is None or found is None or wanted.shape != found.shape or present.back is None:
            return y
        return y + product.at(present.back(wanted - found), positions)


class NormStatistics:
    """Mean and variance of a batch norm's inputs in both networks, by channel."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self._sums = torch.zeros(2, 3, channels, dtype=torch.float64, device=device)

    def add(self, exact: Use | None, present: Use) -> None:
        """Add a use, if the float network has the same one."""
        if exact is None:
            return
        for sums, x in zip(self._sums, (exact.inputs, present.inputs), strict=True):
            values = x.transpose(0, 1).flatten(1)
            sums[0] += values.shape[1]
            sums[1] += values.sum(1, dtype=sums.dtype)
            sums[2] += values.square().sum(1, dtype=sums.dtype)

    def transfer(self, norm: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
        """Change the norm's trained mean and variance as rounding changes them on the batches.

        With k the ratio of the standard deviations, they become mean k + E[rounded] - E[float] k and variance k².
        Unlike an estimate on the batches alone, this keeps what the statistics owe to the training data, such as its
        augmentation.
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
