"""A block: the weights of a labelling that share one level set and one optimizer group."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.labelling.levels import LevelSet


@dataclass(eq=False)
class Block:
    """m weights with d levels each; `w` and `g` are views of the labelling's vectors.

    Attributes:
        levels: the d levels.
        start: where the block begins in the labelling's vectors.
        w: (m,) the weights that the network computes with.
        g: (m,) the gradient of the loss with respect to them.
        scale: (m,) the positive number that multiplies the levels of each weight, or None for 1.
        group: the number of its optimizer group, see `mrfquant.inference.groups`.
        precision: of the network's weights, which those here are rounded to; that of w by default.
        parameter_sizes: how many weights each parameter has, in the order of the block; one parameter by default.
        number: its place among the blocks of the labelling; a shard has the number of the whole block.
    """

    levels: LevelSet
    start: int
    w: Tensor
    g: Tensor
    scale: Tensor | None = None
    group: int = 0
    precision: torch.dtype | None = None
    parameter_sizes: tuple[int, ...] = ()
    number: int = 0

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

    def narrow(self, start: int, stop: int) -> Block:
        """Return the block of the weights from `start` to `stop` of the labelling's vectors."""
        cut = slice(start - self.start, stop - self.start)
        scale = None if self.scale is None else self.scale[cut]
        return replace(self, start=start, w=self.w[cut], g=self.g[cut], scale=scale, parameter_sizes=())

    def repeat_per_weight(self, values: Tensor) -> Tensor:
        """Broadcast per-parameter values (..., parameters) to weights (..., m)."""
        if len(self.parameter_sizes) == 1:
            return values.expand(*values.shape[:-1], self.m)
        return values.repeat_interleave(self._sizes, -1, output_size=self.m)

    def apply_scale(self) -> None:
        """Multiply the weights, written in units of the levels, by their scales."""
        if self.scale is not None:
            self.w.mul_(self.scale)

    def unscaled_weights(self) -> Tensor:
        """Return the weights in units of the levels (m,): w itself where there is no scale."""
        return self.w if self.scale is None else self.w / self.scale

    def write_labels(self, labels: Tensor) -> None:
        """Set each weight to exactly its level, times its scale."""
        torch.index_select(self.q, 0, labels.int(), out=self.w)
        self.apply_scale()

    def nearest(self, values: Tensor) -> Tensor:
        """Return the label whose level is nearest to each value (m,), the lower of equals: int32 (m,)."""
        return torch.bucketize(values, self.midpoints, out_int32=True)
