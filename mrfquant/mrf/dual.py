"""Dual ascent for the least energy: sequential tree-reweighted message passing on factors of any arity.

Costs are moved between a factor a and its variables i without changing any labelling's energy,

    E(x) = sum_i θ_i(x_i) + sum_a θ_a(x_a),   θ_i += M_ai,   θ_a -= M_ai,

and for any M, no labelling is below the sum of all smallest costs:

    bound(M) = sum_i min θ_i + sum_a min θ_a  <=  min_x E(x).

A visit to variable i moves to it all that its factors can give, M_ai += min over x_a without x_i of θ_a, and moves
(θ_i - min θ_i) / max(earlier, later) back to each factor that has a variable still to come (Kolmogorov, 2006 and
2015). Neither lowers the bound. Labels that a factor forbids altogether become impossible for all, exactly.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.mrf.arrays import Arrays
from mrfquant.mrf.factor_graph import FactorGraph, contradiction
from mrfquant.mrf.solver import LabellingSolver

VARIABLES_PER_CHUNK = 4096  # between two checks of the clock


@configurable(supplied=["graph", "seed", "start"])
class DualAscent(LabellingSolver):
    """TRW-S: a lower bound on the energy that never gets worse and is always valid, and labellings on the way.

    Attributes:
        unary: by place, the costs of single variables, inf for labels that are impossible.
        lam: minus the messages.
        energy: energy of the best labelling so far.
    """

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        super().__init__(graph, seed, start)
        self.arrays = Arrays(graph)
        self.unary, self.lam = self.arrays.unary.copy(), np.zeros(self.arrays.size)
        self._first, self._shift = True, 0.0

    def step(self) -> float:
        """Sweep over the variables in their order, and back."""
        from mrfquant.kernels import dual

        before, order = self._bound, np.arange(len(self.graph))
        self._sweep(order)
        self._sweep(order[::-1].copy())
        bound = self._shift + dual.bound(self.arrays.layout, self.unary, self.lam) - self.graph.constant
        if min(bound, self.energy) == math.inf:
            raise contradiction()
        self._bound = max(before, min(bound, self.energy))  # labels that cannot be better may have been dropped
        return 0.0 if self.optimal else max(self._bound - before, 0.0)

    def _sweep(self, order: np.ndarray) -> None:
        from mrfquant.kernels import dual

        rank, labels = np.empty_like(order), np.full_like(order, -1)
        rank[order] = np.arange(len(order))
        for begin in range(0, len(order), VARIABLES_PER_CHUNK):
            if begin and self.out_of_time:
                return
            part = order[begin : begin + VARIABLES_PER_CHUNK]
            dual.sweep(self.arrays.layout, self.unary, self.lam, part, rank, self._first, labels)
        self._first = False
        self.offer(self.arrays.labelling(labels))

    def _beliefs(self) -> np.ndarray:
        """Return, by place, each variable's costs after the messages, less the least of them."""
        from mrfquant.kernels import dual

        field, costs = self.arrays.layout, np.empty_like(self.unary)
        for v, first in enumerate(field.first[:-1]):
            least = dual.belief(field, self.unary, self.lam, v, costs[first:])
            costs[first : field.first[v + 1]] -= least
        return costs

    def _normalised(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return copies of `unary` and `lam` with smallest costs of 0, and their bound (1,)."""
        from mrfquant.kernels import dual

        unary, lam = self.unary.copy(), self.lam.copy()
        return unary, lam, dual.normalise(self.arrays.layout, unary, lam) + self._shift

    def _adopt(self, unary: np.ndarray, lam: np.ndarray, bound: float) -> None:
        """Continue from a reparametrisation with smallest costs of 0 and its bound.

        It may lack labels that no labelling better than the best so far has.
        """
        self.unary, self.lam, self._shift = unary, lam, bound
        self._bound = max(self._bound, min(bound - self.graph.constant, self.energy))
