"""Several solvers on one field in turns, for the best labelling and a proof of it.

    least energy found  =  min over the solvers of E(x),     bound  =  max over the solvers of their bounds

Each continues from the best labelling of all. The labelling is proved optimal when energy and bound meet.
"""

import math
import time

from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.dual import BranchAndBound
from mrfquant.mrf.exact import JunctionTree, TooWide
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.local_search import LocalSearch
from mrfquant.mrf.solver import LabellingSolver

TREE_WIDTH = 22.0  # log2 of the largest table of a junction tree that is tried
TREE_TRIES = 8  # elimination orders for it
TREE_SPEED = 2e7  # table entries per second, roughly
MAX_TREE_VARIABLES = 2 * 10**4  # above, no junction tree is tried
ASCENT_TIME = 0.3  # fraction of the remaining time for successive sweeps of the dual ascent
MAX_SEARCH_LABELS = 10**5  # labels of all variables above which branch and bound is hopeless


@configurable(supplied=["graph", "seed", "start"])
class Portfolio(LabellingSolver):
    """Dual ascent, the junction tree if it is thin, then branch and bound and local search in turns.

    Args:
        patience: turns without a better labelling after which it ends; with a time limit it uses all of the time.
    """

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, patience: Count = 20) -> None:
        super().__init__(graph, seed, start)
        self.patience = patience
        self._branch = BranchAndBound(graph, seed, start)
        self._local = LocalSearch(graph, seed, start)
        self._turn, self._idle = 0, 0

    def step(self) -> float:
        before, turn = self.energy, self._turn
        self._turn += 1
        if turn == 1:
            self._solve_exactly()
        elif turn % 2 == 0 and (self._branch.sweeps or self._search_pays()):
            self._ascend_or_search()
        else:
            self._local.deadline = self.deadline
            self._local.step()
            self.offer(self._local.labels())
        self._idle = 0 if self.energy < before or turn < 2 * self.patience else self._idle + 1
        if self.optimal or (self._idle >= self.patience and self.deadline == math.inf):
            return 0.0
        return 1.0

    def offer(self, labels: Tensor) -> bool:
        better = super().offer(labels)
        if better:
            self._branch.offer(labels)
            self._local.offer(labels)
        return better

    def _search_pays(self) -> bool:
        """Return whether branch and bound has worked less than local search, on a field that is not too large."""
        return self._branch.work <= self._local.work and self.graph.size <= MAX_SEARCH_LABELS

    def _ascend_or_search(self) -> None:
        """Do several sweeps of the dual ascent, or one search."""
        branch, now = self._branch, time.perf_counter()
        branch.deadline = self.deadline
        ends = now + ASCENT_TIME * (self.deadline - now)
        branch.step()
        while branch.sweeps and not branch.optimal and time.perf_counter() < ends:
            branch.step()
        self.offer(branch.labels())
        self._bound = max(self._bound, branch.bound())

    def _solve_exactly(self) -> None:
        """Use a junction tree, if it fits into the time."""
        left = min(60.0, self.deadline - time.perf_counter())
        if len(self.graph) > MAX_TREE_VARIABLES:
            return
        try:
            tree = JunctionTree(self.graph, width_limit=TREE_WIDTH, tries=TREE_TRIES)
        except TooWide:
            return
        if tree.entries < TREE_SPEED * left / 2:
            self.offer(tree.labels())
            self._bound = max(self._bound, self.energy)
