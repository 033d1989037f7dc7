"""Scales that are learned: one positive number for each run of weights, the same for the levels of all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor


class LearnedScales:
    """w = s u q with s = exp(θ): θ is what an optimizer moves, so s stays positive and a step is a relative change.

    The gradient with respect to θ is the sum of g w over the weights that share s; it is divided by the root of their
    number, as in LSQ (Esser et al., 2020), so that it is of the size of a weight's.

    Args:
        lengths: how many neighbouring weights share a scale, for each scale, in the order of the labelled vector.
        scale: (m,) the scale of every weight, which `write` sets.

    Attributes:
        log: θ (c,).
    """

    def __init__(self, lengths: Sequence[int], scale: Tensor) -> None:
        self.scale = scale
        self.lengths = torch.tensor(lengths, device=scale.device)
        self.starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        self.log = scale.new_empty(len(lengths))
        self.read()

    def read(self) -> None:
        """Set θ from the scales of the weights."""
        self.log.copy_(self.scale[torch.tensor(self.starts[:-1], device=self.scale.device)].log())

    def write(self) -> None:
        """Set the scales of the weights from θ."""
        torch.index_select(self.log.exp(), 0, self._index(), out=self.scale)

    def gradient(self, g: Tensor, w: Tensor) -> Tensor:
        """With respect to θ, from the gradient on the weights and the weights: (c,)."""
        return torch.segment_reduce(g * w, "sum", lengths=self.lengths) / self.lengths.sqrt()

    def part(self, first: int, last: int) -> Tensor:
        """θ of the weights from `first` to `last` of the labelled vector."""
        return self.log[bisect_left(self.starts, first) : bisect_left(self.starts, last)]

    def _index(self) -> Tensor:
        """The number of each weight's scale: (m,)."""
        numbers = torch.arange(len(self.lengths), device=self.lengths.device)
        return torch.repeat_interleave(numbers, self.lengths, output_size=len(self.scale))
