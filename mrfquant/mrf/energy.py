"""An explicit Markov random field as the energy that solvers of network labels minimise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrfquant.energies.base import Energy
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

    def begin_step(self, us: Iterable[tuple[Block, Tensor | None]]) -> None:
        flat = torch.cat([block.probabilities(u).reshape(-1) for block, u in us if u is not None])
        self._fields = self.graph.fields(flat)

    def value(self, block: Block, u: Tensor) -> Tensor:
        return -(self._part(block) * block.probabilities(u)).sum()

    def gradient(self, block: Block, u: Tensor) -> Tensor:
        fields = self._part(block)
        return (fields[0] - fields[1]) / 2 if block.is_pair else -fields

    def _part(self, block: Block) -> Tensor:
        """The fields of a block's variables as they were when the step began: (d, m)."""
        return next(c for c in self.graph.by_cardinality if c.labels == block.d).planes(self._fields)
