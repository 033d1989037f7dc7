"""One number a level: variables and probabilities of shape (d, m), as in the paper."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from mrfquant.families.base import INIT_LABEL_FLOOR, Family, Gradient
from mrfquant.families.distribution import Distribution, Independent
from mrfquant.labelling import Block
from mrfquant.projections import Projection, Sparsemax


class PlanesFamily(Family):
    """Any labels with natural parameters x (d, m): plane λ holds label λ of every weight.

    Attributes:
        u: (d, m) the probabilities that the weights were written from. A gradient is built in their place, since they
            are not needed any more once it is known.
    """

    def __init__(self, block: Block, projection: Projection) -> None:
        super().__init__(block, projection)
        self.numbers = block.d
        self._mean_level = sum(block.levels.values) / block.d
        self._centred_q = (block.q - self._mean_level)[:, None]

    @functools.cached_property
    def u(self) -> Tensor:  # made when it is first written to
        return self.block.w.new_empty(self.block.d, self.block.m)

    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        x = self.block.w.new_empty(self.block.d, self.block.m)
        for plane in x:
            plane.copy_(draw())  # one after the other: memory for one draw
        return x

    def start_at(self, w: Tensor, beta: float, as_mean: bool = False) -> Tensor:
        u = self._around(w)
        return u if as_mean else self.projection.planes_start(u, beta)

    def write(self, x: Tensor, beta: float) -> None:
        self.projection.weights(x, self.block.q, beta, self.u, self.block.w)
        self.block.apply_scale()

    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        block, g = self.block, gradient.weights
        if g is None or gradient.marginals is not None:
            return self.projection.planes_vjp(self.u, gradient.on_labels(block), factor, x)
        # In the place of g and u: no new tensor of their size. The weights are taken for u q.
        g = block.scaled(g)
        if gradient.costs is not None:
            costs = (block.parameter_sizes, gradient.costs)
            return self.projection.weights_vjp(self.u, self._centred_q, None, g, factor, x, costs)
        w = block.unscaled_weights()
        w = w - self._mean_level if self._mean_level else w
        return self.projection.weights_vjp(self.u, self._centred_q, w, g, factor, x)

    def mean_gradient(self, gradient: Gradient, x: Tensor, beta: float) -> Tensor:
        g = gradient.on_labels(self.block)
        return g.sub_(g.mean(0))

    def labels(self, x: Tensor, beta: float) -> Tensor:
        return (x if self.projection.by_weight else self.u).argmax(0).int()

    def distribution(self, x: Tensor, beta: float) -> Distribution:
        return Independent(self.block, self.u)

    def clip(self, x: Tensor) -> None:
        Sparsemax().planes(x, 1.0, out=x)

    def project(self, x: Tensor, beta: float) -> None:
        self.write(x, beta)
        x.copy_(self.u)

    def restore(self, x: Tensor, beta: float, as_mean: bool = False) -> None:
        if as_mean:
            self.u.copy_(x)
        else:  # by the operations of `write`, so that it is the same u to the bit
            self.projection.weights(x, self.block.q, beta, self.u, torch.empty_like(self.block.w))

    def _around(self, values: Tensor) -> Tensor:
        """Return u (d, m) whose expected levels are the values (m,), as far as the levels reach.

        It mixes the two levels next to a value, and leaves every label a little probability, so that it can be reached.
        """
        block = self.block
        values = values.clamp(block.levels.values[0], block.levels.values[-1])
        below = (torch.bucketize(values, block.q, right=True) - 1).clamp_(0, block.d - 2)
        share = (values - block.q[below]) / (block.q[below + 1] - block.q[below])
        u = values.new_full((block.d, block.m), INIT_LABEL_FLOOR / block.d)
        u.scatter_add_(0, below[None], (1 - INIT_LABEL_FLOOR) * (1 - share)[None])
        return u.scatter_add_(0, below[None] + 1, (1 - INIT_LABEL_FLOOR) * share[None])
