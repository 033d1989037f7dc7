"""The first-order model of the loss, on which the paper's methods work."""

from __future__ import annotations

from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies.base import Energy
from mrfquant.families import Distribution, Gradient


@configurable
class FirstOrderTaylor(Energy):
    """E^k = <g^k, E[w]>: linear, so the weights do not interact, and its gradient on the expected weights is g^k."""

    by_weight = True

    def value(self, p: Distribution) -> Tensor:
        return p.block.g @ p.mean()

    def gradient(self, p: Distribution) -> Gradient:
        return Gradient(weights=p.block.g)
