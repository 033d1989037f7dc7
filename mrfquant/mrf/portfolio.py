"""Several solvers on one field in turns, for the best labelling and a proof of it.

    least energy found  =  min over the solvers of E(x),     bound  =  max over the solvers of their bounds

and what one finds, the others go on from. The labelling is proved optimal when the two meet.
"""

from __future__ import annotations

import math
import time

from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.branch_and_bound import BranchAndBound
from mrfquant.mrf.exact import JunctionTree, TooWide
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.local_search import LocalSearch
from mrfquant.mrf.solver import FieldSolver, proves

WIDTH = 22.0  # log2 of the largest table of a junction tree that is tried
TRIES = 8  # elimination orders for it
ENTRIES = 2e7  # table entries that it handles in a second, roughly
SHARE = 0.3  # of the time that is left, for sweeps of the dual ascent in a row
DECOMPOSED = 2 * 10**4  # variables above which no junction tree is looked for
SEARCHED = 10**5  # labels of all variables above which branch and bound is hopeless


@configurable(supplied=["graph", "seed", "start"])
class Portfolio(FieldSolver):
    """Dual ascent, the junction tree if it is thin, then branch and bound and local search in turns.

    Args:
        patience: turns without a better labelling after which it ends; with a time limit it goes on to that.
    """

    compiled = True

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, patience: Count = 20) -> None:
        super().__init__(graph, seed, start)
        self.patience = patience
        self._branch = BranchAndBound(graph, seed, start)
        self._local = LocalSearch(graph, seed, start)
        self._labels, self._energy = self._branch.labels(), math.inf
        self._best_bound = -math.inf
        self._turn, self._idle = 0, 0
        self._take(self._local.labels())

    def step(self) -> float:
        before = self._energy
        turn, self._turn = self._turn, self._turn + 1
        if turn == 1:
            self._solve_exactly()
        elif turn % 2 == 0 and (self._branch.sweeps or self._search_pays()):
            self._ascend_or_search()
        else:
            self._local.deadline = self.deadline
            self._local.step()
            self._take(self._local.labels())
        self._idle = 0 if self._energy < before or turn < 2 * self.patience else self._idle + 1
        if proves(self._best_bound, self._energy):
            return 0.0
        return 0.0 if self._idle >= self.patience and self.deadline == math.inf else 1.0

    def marginals(self) -> Tensor:
        return self.graph.one_hot(self._labels)

    def labels(self) -> Tensor:
        return self._labels

    def bound(self) -> float:
        return self._best_bound

    def _ascend_or_search(self) -> None:
        """Sweeps of the dual ascent, or one search."""
        branch = self._branch
        branch.deadline = self.deadline
        now = time.perf_counter()
        ends = now + SHARE * (self.deadline - now)
        branch.step()
        while branch.sweeps and not branch.optimal and time.perf_counter() < ends:
            branch.step()
        self._take(branch.labels())
        self._best_bound = max(self._best_bound, branch.bound())

    def _search_pays(self) -> bool:
        """Whether branch and bound has worked less than local search so far, on a field that is not too large."""
        return self._branch.work <= self._local.work and self.graph.size <= SEARCHED

    def _solve_exactly(self) -> None:
        """By a junction tree, if it fits into the time."""
        left = min(60.0, self.deadline - time.perf_counter())
        if len(self.graph) > DECOMPOSED:
            return
        try:
            tree = JunctionTree(self.graph, width_limit=WIDTH, tries=TRIES)
        except TooWide:
            return
        if tree.entries < ENTRIES * left / 2:
            self._take(tree.labels())
            self._best_bound = max(self._best_bound, self._energy)

    def _take(self, labels: Tensor) -> None:
        """Keep a labelling if it is the best, and tell the others."""
        energy = self.graph.energy(labels).item()
        if energy < self._energy:
            self._labels, self._energy = labels.clone(), energy
            self._branch.offer(labels)
            self._local.offer(labels)
