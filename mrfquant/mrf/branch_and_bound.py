"""Branch and bound with the dual bound: the least energy, proved, where the search comes to its end.

At each node of the search tree a variable keeps one of its labels or loses it, and visits to the variables around

    raise   bound(M) = sum_i min θ_i + sum_a min θ_a   (see `mrfquant.mrf.dual`)

and drop every label with bound(M) + θ_i(x_i) - min θ_i >= best: no labelling with it is better than the best known. A
node whose bound reaches the best, or where a variable has no label left, is done.
"""

from __future__ import annotations

import math
import time

import numpy as np
from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.dual import DualAscent
from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.solver import PROVED, FieldSolver

TURNS = 10  # of a search for any labelling that is allowed
GROWTH = 1.5  # of the budget from one step to the next
STALLED = 1e-3  # a sweep that raises the bound by a smaller share of the gap is the last before the search


@configurable(supplied=["graph", "seed", "start"])
class BranchAndBound(FieldSolver):
    """Sweeps of `DualAscent` first, then depth-first searches from the root, each longer than the one before.

    What a search learns stays: the best labelling, labels that cannot be part of a better one, and at which variables
    dead ends were met.

    Args:
        budget: table entries that the first search looks at.
        sweeps: of the dual ascent, at most.
    """

    compiled = True

    def __init__(
        self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, budget: Count = 2**20, sweeps: Count = 100
    ) -> None:
        super().__init__(graph, seed, start)
        self.budget, self.sweeps = budget, sweeps
        self.dual = DualAscent(graph, seed, start)
        self.complete = False
        self._weight = np.ones(len(graph))
        self._liked: np.ndarray | None = None
        self.work = 0  # table entries that searches looked at
        self._rate = math.inf  # of them per second

    def step(self) -> float:
        if self.sweeps:
            self._ascend()
        else:
            self._search()
        return 0.0 if self.optimal else 1.0

    def marginals(self) -> Tensor:
        return self.dual.marginals()

    def labels(self) -> Tensor:
        return self.dual.labels()

    def bound(self) -> float:
        return self.dual.energy if self.complete else self.dual.bound()

    @property
    def optimal(self) -> bool:
        """Whether the labelling is proved."""
        return self.complete or self.dual.optimal

    def offer(self, labels: Tensor) -> None:
        """Search below the energy of a labelling."""
        self.dual.offer(labels)

    def _ascend(self) -> None:
        """A sweep; the last one if it gained little."""
        self.dual.deadline = self.deadline
        gain, gap = self.dual.step(), self.dual.energy - self.dual.bound()
        self.sweeps = self.sweeps - 1 if gain > STALLED * gap else 0

    def _search(self) -> None:
        from mrfquant.kernels import branch

        dual, field = self.dual, self.dual.arrays.layout
        if self._liked is None:
            self._liked = dual.beliefs()
        unary, lam, total = dual.normalised()
        constant, labels = self.graph.constant, np.empty(len(self.graph), np.int64)
        limit = dual.energy + constant
        margin = PROVED * max(1.0, abs(limit)) / 2 if math.isfinite(limit) else 0.0
        budget = float(min(self.budget, self._rate * max(0.0, self.deadline - time.perf_counter()) / 2))
        began = time.perf_counter()
        self.complete, found, done = branch.search(
            field, dual.arrays.unary, unary, lam, total, limit, margin, budget, self._weight, self._liked, labels
        )
        self.work += done
        self._rate = done / max(1e-9, time.perf_counter() - began)
        self.budget = int(GROWTH * self.budget)
        if found < limit:
            self.offer(dual.arrays.labelling(labels))
        elif self.complete and not math.isfinite(limit):
            raise Contradiction("the factors contradict each other: no labelling has a probability above 0")
        dual.adopt(unary, lam, total.item())


def feasible(graph: FactorGraph, seed: int = 0) -> Tensor | None:
    """A labelling that hard constraints allow, None if a short search finds none."""
    solver = BranchAndBound(graph, seed, sweeps=3)
    for _ in range(TURNS):
        if math.isfinite(solver.dual.energy):
            return solver.labels()
        solver.step()
    return solver.labels() if math.isfinite(solver.dual.energy) else None
