"""All parameters of a network in one vector: one optimizer tensor, one kernel launch, one all-reduce."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class FlatParameters:
    """The vectors `w` and `g`, of which the given parameters and their gradients are views.

    The network stays an ordinary module: it reads its parameters where they always were, and backward adds into
    `g`. Moving the module to another device afterwards would cut the views: move it before.

    Attributes:
        w: (m,) values. g: (m,) gradient, accumulated by backward.
        spans: name -> (start, stop) within the vectors, in the order given.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        first = next(iter(parameters.values()), torch.empty(0))
        m = sum(p.numel() for p in parameters.values())
        self.w = torch.empty(m, dtype=first.dtype, device=first.device)
        self.g = torch.zeros_like(self.w)
        self.spans: dict[str, tuple[int, int]] = {}
        self._parameters = dict(parameters)
        start = 0
        for name, p in parameters.items():
            # Same strides as before, so that a channels_last weight stays channels_last.
            value, gradient = (vector.as_strided(p.shape, p.stride(), start) for vector in (self.w, self.g))
            value.copy_(p.detach())
            p.data, p.grad = value, gradient
            self.spans[name] = (start, start + p.numel())
            start += p.numel()

    def __len__(self) -> int:
        return self.w.numel()

    def view(self, name: str, of: Tensor) -> Tensor:
        """The part of the vector `of` (m,) that belongs to the parameter `name`, in its shape."""
        p = self._parameters[name]
        return of.as_strided(p.shape, p.stride(), self.spans[name][0])
