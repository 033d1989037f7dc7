"""A block: the variables of a labelling that share one level set and one group, and what can be said about them.

u is kept in one of the two forms of `mrfquant.projections`: planes (d, m), or for two levels the pair form t (m,).
Solvers that keep auxiliary variables on the line have a number for each weight, and make the planes of u from it when
they are asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.labelling.levels import LevelSet

Form = Literal["line", "planes"]
SMALLEST = 0.01  # probability that is left for what a start does not ask for


@dataclass
class Block:
    """m variables with d labels each; `w` and `g` are views of the labelling's vectors.

    Attributes:
        levels: the d levels.
        start: where the block begins in the labelling's vectors.
        w: (m,) the weights that the network computes with.
        g: (m,) the gradient of the loss with respect to them.
        scale: (m,) the positive number that multiplies the levels of each weight, or None for 1.
        group: the number of its group of parameters, see `Labelling`.
        precision: of the network's weights, which those here are rounded to; that of w by default.
        form: of auxiliary variables of more than two levels, see `mrfquant.projections`.
        parts: how many of the variables each of its parameters has, in their order; all are one part by default.
    """

    levels: LevelSet
    start: int
    w: Tensor
    g: Tensor
    scale: Tensor | None = None
    group: int = 0
    precision: torch.dtype | None = None
    form: Form = "planes"
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.parts = self.parts or (len(self.w),)
        self._part_sizes = torch.tensor(self.parts, device=self.w.device)
        self.q = torch.tensor(self.levels.values, dtype=self.w.dtype, device=self.w.device)
        seen = self.q.to(self.precision or self.w.dtype)
        if not seen.isfinite().all() or len(seen.unique()) < self.d:
            raise BadInput(f"the levels {list(self.levels.values)} are not {self.d} different numbers in {seen.dtype}")
        self.midpoints = self.q.new_tensor(self.levels.midpoints)
        self.mean_level = sum(self.levels.values) / self.d
        self.centred_q = (self.q - self.mean_level)[:, None]

    @property
    def m(self) -> int:
        """Number of variables."""
        return len(self.w)

    @property
    def d(self) -> int:
        """Number of labels."""
        return len(self.levels)

    @property
    def is_pair(self) -> bool:
        """Whether u is kept in the pair form."""
        return self.d == 2

    @property
    def has_planes(self) -> bool:
        """Whether auxiliary variables are kept as planes."""
        return self.form == "planes" and not self.is_pair

    def each(self, of_parts: Tensor) -> Tensor:
        """What parts have, (..., parts), for each of their variables: (..., m)."""
        if len(self.parts) == 1:
            return of_parts.expand(*of_parts.shape[:-1], self.m)
        return of_parts.repeat_interleave(self._part_sizes, -1, output_size=self.m)

    def write(self, u: Tensor) -> None:
        """Set the weights to their expectation w = u q."""
        if self.is_pair:
            self.write_mean(u)
        else:
            torch.mv(u.t(), self.q, out=self.w)
            self.apply_scale()

    def write_mean(self, t: Tensor) -> None:
        """Set the weights to t (m,), which goes from -1 at the lowest level to 1 at the highest."""
        if (self.levels.middle, self.levels.half_gap) != (0.0, 1.0):
            torch.add(self.levels.middle, t, alpha=self.levels.half_gap, out=self.w)
        elif t is not self.w:
            self.w.copy_(t)
        self.apply_scale()

    def apply_scale(self) -> None:
        """Multiply the weights, written as if every scale were 1, by their scales."""
        if self.scale is not None:
            self.w.mul_(self.scale)

    def unscaled_weights(self) -> Tensor:
        """The weights as if every scale were 1: (m,), w itself where there is no scale."""
        return self.w if self.scale is None else self.w / self.scale

    def gradient_on_u(self, g: Tensor) -> Tensor:
        """The gradient with respect to u, in its form, of what has the gradient g (m,) with respect to w = u q."""
        g = g if self.scale is None else g * self.scale
        return g * self.levels.half_gap if self.is_pair else self.q[:, None] * g

    def mean_of_weights(self) -> Tensor:
        """The t that `write_mean` made the weights from; w itself for levels from -1 to 1 without scale."""
        if self.scale is None and (self.levels.middle, self.levels.half_gap) == (0.0, 1.0):
            return self.w
        return ((self.unscaled_weights() - self.levels.middle) / self.levels.half_gap).clamp_(-1, 1)

    def around(self, values: Tensor) -> Tensor:
        """u, in its form, whose expected levels are the values (m,), as far as the levels reach.

        It mixes the two levels next to a value, and leaves every label a little probability, so that it can be reached.
        """
        if self.is_pair:
            return self.mean_around(values)
        values = values.clamp(self.levels.values[0], self.levels.values[-1])
        below = (torch.bucketize(values, self.q, right=True) - 1).clamp_(0, self.d - 2)
        share = (values - self.q[below]) / (self.q[below + 1] - self.q[below])
        u = values.new_full((self.d, self.m), SMALLEST / self.d)
        u.scatter_add_(0, below[None], (1 - SMALLEST) * (1 - share)[None])
        return u.scatter_add_(0, below[None] + 1, (1 - SMALLEST) * share[None])

    def mean_around(self, values: Tensor) -> Tensor:
        """t, from -1 at the lowest level to 1 at the highest, of the values (m,), a little within both."""
        return ((values - self.levels.middle) / self.levels.half_gap).clamp_(SMALLEST - 1, 1 - SMALLEST)

    def write_labels(self, labels: Tensor) -> None:
        """Set each weight to exactly its level (times its scale)."""
        torch.index_select(self.q, 0, labels.int(), out=self.w)
        self.apply_scale()

    def likeliest(self, u: Tensor) -> Tensor:
        """The label of each variable with the largest u or ũ, the first of equals: int32 (m,)."""
        return (u > 0).int() if self.is_pair else u.argmax(0).int()

    def nearest(self, values: Tensor) -> Tensor:
        """The label whose level is nearest to each value (m,), the lower of equals: int32 (m,)."""
        return torch.bucketize(values, self.midpoints, out_int32=True)

    def sample(self, u: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A label for each variable, drawn from its u: int32 (m,)."""
        draw = torch.rand(u.shape[-1], generator=generator, device=u.device, dtype=u.dtype)
        if self.is_pair:
            return (draw < (1 + u) / 2).int()
        return (draw >= u.cumsum(0)[:-1]).sum(0).int()

    def probabilities(self, u: Tensor) -> Tensor:
        """u as planes (d, m)."""
        return torch.stack([(1 - u) / 2, (1 + u) / 2]) if self.is_pair else u

    def moments(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each weight under u, with its scale: (m,) each."""
        if self.is_pair:
            mean, variance = self.levels.middle + self.levels.half_gap * u, self.levels.half_gap**2 * (1 - u * u)
        else:
            mean = self.q @ u
            variance = ((self.q[:, None] - mean).square() * u).sum(0)
        return (mean, variance) if self.scale is None else (mean * self.scale, variance * self.scale.square())

    def entropy(self, u: Tensor) -> Tensor:
        """The entropy of each variable in bits: (m,)."""
        return torch.special.entr(self.probabilities(u)).sum(0) / math.log(2)

    def decided(self, u: Tensor, threshold: float = 0.99) -> Tensor:
        """Whether one label has at least the probability `threshold`: bool (m,)."""
        return self.probabilities(u).amax(0) >= threshold
