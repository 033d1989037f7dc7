"""Dual ascent for the least energy: sequential tree-reweighted message passing on factors of any arity.

Costs are moved between a factor a and its variables i without changing any labelling's energy,

    E(x) = sum_i θ_i(x_i) + sum_a θ_a(x_a),   θ_i += M_ai,   θ_a -= M_ai,

and whatever M is, no labelling is below the sum of all smallest costs:

    bound(M) = sum_i min θ_i + sum_a min θ_a  <=  min_x E(x).

A visit to variable i takes over all that its factors can give, M_ai += min over x_a without x_i of θ_a, and hands
(θ_i - min θ_i) / max(earlier, later) back to each factor that has a variable still to come (Kolmogorov, 2006 and
2015). Neither lowers the bound. Labels that a factor forbids altogether become impossible for all, exactly.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.mrf.arrays import Arrays
from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.solver import FieldSolver, proves

CHUNK = 4096  # variables between two looks at the clock


@configurable(supplied=["graph", "seed", "start"])
class DualAscent(FieldSolver):
    """TRW-S: a lower bound on the energy that never gets worse and holds at every moment, and labellings on the way.

    Attributes:
        unary: by place, the costs of single variables with inf for labels that are impossible.
        lam: minus the messages.
        energy: of the best labelling so far.
    """

    compiled = True

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        super().__init__(graph, seed, start)
        self.arrays = Arrays(graph)
        self.unary, self.lam = self.arrays.unary.copy(), np.zeros(self.arrays.size)
        n = len(graph)
        self._orders = [np.arange(n), np.arange(n)[::-1].copy()]
        self._sweeps = 0
        self._bound, self._shift = -math.inf, 0.0
        self._labels = graph.argmax(graph.unary() if start is None else start)
        self.energy = graph.energy(self._labels).item()

    def step(self) -> float:
        """A sweep there and one back."""
        from mrfquant.kernels import dual

        before = self._bound
        for order in self._orders:
            self._sweep(order)
        bound = self._shift + dual.bound(self.arrays.layout, self.unary, self.lam) - self.graph.constant
        if min(bound, self.energy) == math.inf:
            raise Contradiction("the factors contradict each other: no labelling has a probability above 0")
        self._bound = max(before, min(bound, self.energy))  # labels that cannot be better may have been dropped
        return 0.0 if self.optimal else max(self._bound - before, 0.0)

    def marginals(self) -> Tensor:
        return self.graph.one_hot(self._labels)

    def labels(self) -> Tensor:
        return self._labels

    def bound(self) -> float:
        return self._bound

    @property
    def optimal(self) -> bool:
        """Whether the bound proves the labelling."""
        return proves(self._bound, self.energy)

    def beliefs(self) -> np.ndarray:
        """By place, each variable's costs after the messages, less the least of them."""
        from mrfquant.kernels import dual

        field, costs = self.arrays.layout, np.empty_like(self.unary)
        for v, first in enumerate(field.first[:-1]):
            dual.belief(field, self.unary, self.lam, v, costs[first:])
            costs[first : field.first[v + 1]] -= costs[first : field.first[v + 1]].min()
        return costs

    def normalised(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of `unary` and `lam` with smallest costs of 0, and what was subtracted: (1,), the bound."""
        from mrfquant.kernels import dual

        unary, lam = self.unary.copy(), self.lam.copy()
        return unary, lam, dual.normalise(self.arrays.layout, unary, lam) + self._shift

    def adopt(self, unary: np.ndarray, lam: np.ndarray, bound: float) -> None:
        """Go on from a reparametrisation with smallest costs of 0 and its bound.

        Labels may be missing that no labelling better than the best so far has.
        """
        self.unary, self.lam, self._shift = unary, lam, bound
        self._bound = max(self._bound, min(bound - self.graph.constant, self.energy))

    def _sweep(self, order: np.ndarray) -> None:
        from mrfquant.kernels import dual

        rank, labels = np.empty_like(order), np.full_like(order, -1)
        rank[order] = np.arange(len(order))
        field = self.arrays.layout
        for begin in range(0, len(order), CHUNK):
            if begin and self.out_of_time:
                return
            dual.sweep(field, self.unary, self.lam, order[begin : begin + CHUNK], rank, self._sweeps == 0, labels)
        self._sweeps += 1
        self.offer(self.arrays.labelling(labels))

    def offer(self, labels: Tensor) -> None:
        """Keep a labelling if it is the best so far."""
        energy = self.graph.energy(labels).item()
        if energy < self.energy:
            self._labels, self.energy = labels, energy
