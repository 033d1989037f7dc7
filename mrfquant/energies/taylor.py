"""The first-order model of the loss, on which the paper's methods work."""

from __future__ import annotations

from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies.base import Energy
from mrfquant.labelling import Block
from mrfquant.projections import Projection


@configurable
class FirstOrderTaylor(Energy):
    """E^k(u) = <g^k, u q>: linear, so the weights do not interact and u's gradient is g^k qᵀ everywhere."""

    def value(self, block: Block, u: Tensor) -> Tensor:
        gradient = self.gradient(block, u)
        return gradient @ u if block.is_pair else (gradient * u).sum()

    def gradient(self, block: Block, u: Tensor) -> Tensor:
        g = block.g if block.scale is None else block.g * block.scale
        return g * block.levels.half_gap if block.is_pair else block.q[:, None] * g

    def pull_back(self, block: Block, u: Tensor, aux: Tensor, beta: float, projection: Projection) -> Tensor:
        if type(self).gradient is not FirstOrderTaylor.gradient:
            return super().pull_back(block, u, aux, beta, projection)
        # The same as the base's, in the place of g and u: no new tensor of their size. w is taken for u q.
        g = block.g if block.scale is None else block.g.mul_(block.scale)
        if block.is_pair:
            delta = g if block.levels.half_gap == 1 else g.mul_(block.levels.half_gap)
            return projection.pair_vjp(u, delta, beta, aux)
        w = block.unscaled_weights()
        if block.mean_level:
            w = w - block.mean_level
        return projection.weights_vjp(u, block.centred_q, w, g, beta, aux)
