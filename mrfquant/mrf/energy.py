"""An explicit Markov random field as the energy that solvers of network labels minimise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrfquant.energies.base import Distributions, Energy
from mrfquant.families import Distribution, Gradient
from mrfquant.labelling import Block

if TYPE_CHECKING:
    from mrfquant.mrf.factor_graph import FactorGraph  # whose package imports this file


class FactorGraphEnergy(Energy):
    """E(u): the expected energy of a factor graph under the factorised u.

    Its labelling has one block per cardinality, in increasing order (`mrfquant.mrf.relaxation` builds it); variables
    of different blocks interact, so their fields are computed for all of them at the start of each step.
    """

    def __init__(self, graph: FactorGraph) -> None:
        self.graph = graph
        self._fields = torch.zeros(graph.size, dtype=graph.dtype, device=graph.device)

    def begin_step(self, iteration: int, distributions: Distributions) -> None:
        u = torch.cat([p.probabilities().reshape(-1) for p in distributions() or ()])
        self._fields = self.graph.fields(u)

    def value(self, p: Distribution) -> Tensor:
        return -(self._part(p.block) * p.probabilities()).sum()

    def gradient(self, p: Distribution) -> Gradient:
        return Gradient(marginals=-self._part(p.block))

    def _part(self, block: Block) -> Tensor:
        """Return the fields of a block's variables as they were when the step began: (d, m)."""
        return next(c for c in self.graph.by_cardinality if c.labels == block.d).planes(self._fields)
