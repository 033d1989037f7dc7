"""Dual ascent for the least energy, and branch and bound with its bound.

Dual ascent is sequential tree-reweighted message passing on factors of any arity: costs are moved between a factor a
and its variables i without changing any labelling's energy,

    E(x) = sum_i θ_i(x_i) + sum_a θ_a(x_a),   θ_i += M_ai,   θ_a -= M_ai,

and for any M, no labelling is below the sum of all smallest costs:

    bound(M) = sum_i min θ_i + sum_a min θ_a  <=  min_x E(x).

A visit to variable i moves to it all that its factors can give, M_ai += min over x_a without x_i of θ_a, and moves
(θ_i - min θ_i) / max(earlier, later) back to each factor that has a variable still to come (Kolmogorov, 2006 and
2015). Neither lowers the bound. Labels that a factor forbids altogether become impossible for all, exactly.

At each node of the search tree of branch and bound, a variable keeps one of its labels or loses it, and visits to the
variables around raise bound(M) and drop every label with bound(M) + θ_i(x_i) - min θ_i >= best: no labelling with it is
better than the best known. A node is done when its bound reaches the best, or when a variable has no label left.
"""

import math
import time

import numpy as np
from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.arrays import arrays_of
from mrfquant.mrf.contradiction import contradiction
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.result import OPTIMALITY_TOLERANCE
from mrfquant.mrf.solver import LabellingSolver

ENTRIES_PER_CHUNK = 2**22  # table entries between two checks of the clock
FEASIBLE_STEPS = 10  # of a search for any labelling that is allowed
BUDGET_GROWTH = 1.5  # from one search to the next
MIN_SWEEP_GAIN = 1e-3  # the search starts after a sweep that raises the bound by a smaller fraction of the gap


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
        self.arrays = arrays_of(graph)
        self.unary, self.lam = self.arrays.unary.copy(), np.zeros(self.arrays.size)
        self._first, self._shift = True, 0.0

    def step(self) -> float:
        """Sweep over the variables in their order, and back."""
        from mrfquant.kernels import dual

        before, order = self._bound, np.arange(len(self.graph))
        self._sweep(order)
        self._sweep(order[::-1].copy())
        if self.out_of_time and before > -math.inf:
            return 0.0 if self.optimal else 1.0
        bound = self._shift + dual.bound(self.arrays.layout, self.unary, self.lam) - self.graph.constant
        if min(bound, self.energy) == math.inf:
            raise contradiction()
        self._bound = max(before, min(bound, self.energy))  # labels that cannot be better may have been dropped
        return 0.0 if self.optimal else max(self._bound - before, 0.0)

    def _sweep(self, order: np.ndarray) -> None:
        from mrfquant.kernels import dual

        rank, labels = np.empty_like(order), np.full_like(order, -1)
        rank[order] = np.arange(len(order))
        chunk = max(1, ENTRIES_PER_CHUNK * len(order) // max(1, 3 * self.graph.table_entries))
        for begin in range(0, len(order), chunk):
            if begin and self.out_of_time:
                return
            part = order[begin : begin + chunk]
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


@configurable(supplied=["graph", "seed", "start"])
class BranchAndBound(DualAscent):
    """Sweeps of `DualAscent`, then depth-first searches from the root, each longer than the one before.

    The next search keeps the best labelling, the labels that were ruled out, and which variables led to dead ends.

    Args:
        budget: table entries that the first search reads.
        sweeps: the most sweeps of the dual ascent.
    """

    def __init__(
        self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, budget: Count = 2**20, sweeps: Count = 100
    ) -> None:
        super().__init__(graph, seed, start)
        self.budget, self.sweeps = budget, sweeps
        self.complete = False
        self._weight = np.ones(len(graph))
        self._liked: np.ndarray | None = None
        self._rate = math.inf  # entries per second

    def step(self) -> float:
        if self.sweeps:
            gain = super().step()
            self.sweeps = self.sweeps - 1 if gain > MIN_SWEEP_GAIN * (self.energy - self._bound) else 0
        else:
            self._search()
        return 0.0 if self.optimal else 1.0

    def bound(self) -> float:
        return self.energy if self.complete else self._bound

    def _search(self) -> None:
        from mrfquant.kernels import branch

        if self._liked is None:
            self._liked = self._beliefs()
        unary, lam, total = self._normalised()
        labels, limit = np.empty(len(self.graph), np.int64), self.energy + self.graph.constant
        margin = OPTIMALITY_TOLERANCE * max(1.0, abs(limit)) / 2 if math.isfinite(limit) else 0.0
        began = time.perf_counter()
        budget = float(min(self.budget, self._rate * max(0.0, self.deadline - began) / 2))
        field, costs = self.arrays.layout, self.arrays.unary
        self.complete, found, done = branch.search(
            field, costs, unary, lam, total, limit, margin, budget, self._weight, self._liked, labels
        )
        self._rate = done / max(1e-9, time.perf_counter() - began)
        self.budget = int(BUDGET_GROWTH * self.budget)
        if found < limit:
            self.offer(self.arrays.labelling(labels))
        elif self.complete and not math.isfinite(limit):
            raise contradiction()
        self._adopt(unary, lam, total.item())


def feasible(graph: FactorGraph, seed: int = 0) -> Tensor | None:
    """Return a labelling that hard constraints allow, None if a short search finds none."""
    solver = BranchAndBound(graph, seed, sweeps=3)
    for _ in range(FEASIBLE_STEPS):
        if not math.isfinite(solver.energy):
            solver.step()
    return solver.labels() if math.isfinite(solver.energy) else None
