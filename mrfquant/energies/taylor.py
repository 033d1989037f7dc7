"""The first-order model of the loss, on which the paper's methods work."""

from __future__ import annotations

from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies.base import Energy
from mrfquant.labelling import Block


@configurable
class FirstOrderTaylor(Energy):
    """E^k(u) = <g^k, u q>: linear, so the weights do not interact and u's gradient is g^k qᵀ everywhere."""

    by_weight = True

    def value(self, block: Block, u: Tensor) -> Tensor:
        return (self.gradient(block, u) * u).sum()

    def gradient(self, block: Block, u: Tensor) -> Tensor:
        return block.gradient_on_u(block.g)

    def weight_gradient(self, block: Block) -> Tensor:
        return block.g
