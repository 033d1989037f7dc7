"""A block: the weights of a labelling that share one level set and one optimizer group."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.labelling.levels import LevelSet
from mrfquant.labelling.scales import RunScales


@dataclass(eq=False)
class Block:
    """m weights with d levels each; `w` and `g` are views of the labelling's vectors.

    Attributes:
        levels: the d levels.
        start: where the block begins in the labelling's vectors.
        w: (m,) the weights that the network computes with.
        g: (m,) the gradient of the loss with respect to them.
        scales: the positive numbers that multiply the levels of runs of weights, or None for 1.
        group: the number of its optimizer group, see `mrfquant.inference.groups`.
        precision: of the network's weights, which those here are rounded to; that of w by default.
        parameter_sizes: how many weights each parameter has, in the order of the block; one parameter by default.
        layouts: a tensor with the shape and strides of each parameter; none for a shard, which cuts them.
        number: its place among the blocks of the labelling; a shard has the number of the whole block.
    """

    levels: LevelSet
    start: int
    w: Tensor
    g: Tensor
    scales: RunScales | None = None
    group: int = 0
    precision: torch.dtype | None = None
    parameter_sizes: tuple[int, ...] = ()
    number: int = 0
    layouts: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        self.parameter_sizes = self.parameter_sizes or (len(self.w),)
        self._sizes = torch.tensor(self.parameter_sizes, device=self.w.device)
        self.q = torch.tensor(self.levels.values, dtype=self.w.dtype, device=self.w.device)
        seen = self.q.to(self.precision or self.w.dtype)
        if not seen.isfinite().all() or len(seen.unique()) < self.d:
            raise BadInput(f"the levels {list(self.levels.values)} are not {self.d} different numbers in {seen.dtype}")
        self.midpoints = self.q.new_tensor(self.levels.midpoints)

    @property
    def m(self) -> int:
        """Number of weights."""
        return len(self.w)

    @property
    def d(self) -> int:
        """Number of levels."""
        return len(self.levels)

    @property
    def scale(self) -> Tensor | None:
        """The scale of each weight (m,), or None for 1. It is new memory: in a step `scaled` needs none."""
        return None if self.scales is None else self.scales.each()

    def narrow(self, start: int, stop: int) -> Block:
        """Return the block of the weights from `start` to `stop` of the labelling's vectors."""
        cut = slice(start - self.start, stop - self.start)
        scales = None if self.scales is None else self.scales.narrow(start, stop)
        return replace(self, start=start, w=self.w[cut], g=self.g[cut], scales=scales, parameter_sizes=(), layouts=())

    def repeat_per_weight(self, values: Tensor) -> Tensor:
        """Broadcast per-parameter values (..., parameters) to weights (..., m)."""
        if len(self.parameter_sizes) == 1:
            return values.expand(*values.shape[:-1], self.m)
        return values.repeat_interleave(self._sizes, -1, output_size=self.m)

    def scaled(self, values: Tensor) -> Tensor:
        """Multiply values (m,) by the scales of their weights, in place, and return them."""
        return values if self.scales is None else self.scales.multiply(values)

    def apply_scale(self) -> None:
        """Multiply the weights, written in units of the levels, by their scales."""
        self.scaled(self.w)

    def unscaled_weights(self) -> Tensor:
        """Return the weights in units of the levels (m,): w itself where there is no scale."""
        return self.w if self.scales is None else self.scales.divide(self.w.clone())

    def write_labels(self, labels: Tensor) -> None:
        """Set each weight to exactly its level, times its scale."""
        torch.index_select(self.q, 0, labels.int(), out=self.w)
        self.apply_scale()

    def nearest(self, values: Tensor) -> Tensor:
        """Return the label whose level is nearest to each value (m,), the lower of equals: int32 (m,)."""
        return torch.bucketize(values, self.midpoints, out_int32=True)
