"""Branch and bound with the dual bound: the least energy, with a proof if the search is complete.

At each node of the search tree a variable keeps one of its labels or loses it, and visits to the variables around

    raise   bound(M) = sum_i min θ_i + sum_a min θ_a   (see `mrfquant.mrf.dual`)

and drop every label with bound(M) + θ_i(x_i) - min θ_i >= best: no labelling with it is better than the best known. A
node is done when its bound reaches the best, or when a variable has no label left.
"""

from __future__ import annotations

import math
import time

import numpy as np
from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.dual import DualAscent
from mrfquant.mrf.factor_graph import FactorGraph, contradiction
from mrfquant.mrf.solver import OPTIMALITY_TOLERANCE

FEASIBLE_STEPS = 10  # of a search for any labelling that is allowed
BUDGET_GROWTH = 1.5  # from one search to the next
MIN_SWEEP_GAIN = 1e-3  # the search starts after a sweep that raises the bound by a smaller fraction of the gap


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
        self.work = 0  # table entries read by searches
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
        self.work += done
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
