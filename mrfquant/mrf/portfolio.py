"""Several solvers on one field in turns, for the best labelling and a proof of it.

    least energy found  =  min over the solvers of E(x),     bound  =  max over the solvers of their bounds

What is known to work comes first, each where it can: expansion moves, descent of single variables, the nearest plane,
a junction tree, dual ascent, max-product. From then on annealing, kicks, local search and branch and bound share the
time; most of it has the one that improved last, and each continues from the best labelling of all. Beside them toulbar2
searches for a proof in a process of its own, where it is installed. The labelling is proved optimal when energy and
bound meet.
"""

import math
import time
from collections.abc import Iterator

from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf import toulbar2
from mrfquant.mrf.annealing import Annealing
from mrfquant.mrf.dual import BranchAndBound
from mrfquant.mrf.exact import JunctionTree, TooWide
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.graph_cut import AlphaExpansion, suits_expansion
from mrfquant.mrf.iterated_descent import IteratedDescent
from mrfquant.mrf.local_search import LocalSearch
from mrfquant.mrf.message_passing import BeliefPropagation
from mrfquant.mrf.quadratic import nearest_plane
from mrfquant.mrf.solver import LabellingSolver
from mrfquant.mrf.toulbar2 import Toulbar2

TREE_WIDTH = 25.0  # log2 of the largest table of a junction tree that is tried
TREE_TRIES = 8  # elimination orders for it
TREE_TIME = 0.8  # fraction of the remaining time that it may take
TREE_SPEED = 1e8  # table entries per second, roughly
MAX_TREE_VARIABLES = 2 * 10**4  # above, no junction tree is tried
START_TIME = 0.3  # fraction of the remaining time for each of the first solvers, at most
EXPANSION_TIME = 0.7  # the same for expansion moves
SECONDS_PER_SLOT = 3e-7  # to make arrays of a field, roughly; without so much time nothing that needs them is begun
SECONDS_PER_ENTRY = 1.5e-8  # the same for entries of tables
MAX_MESSAGE_ENTRIES = 10**7  # table entries above which max-product is hopeless
MAX_SEARCH_LABELS = 10**5  # labels of all variables above which branch and bound is hopeless, and kicks are rare
HOPELESS = ((1200, 0.05), (500, 0.3))  # the same where the gap is wider than a fraction of the energy
TURN_TIME, LOCAL_TIME = 0.1, 0.05  # fractions of the remaining time for max-product, and for a turn of local search
SHORTEST_TURN = 0.3  # seconds
BEST_SHARE = 20.0  # times the others' time for the solver that found the best labelling
MAX_DENSITY = 0.5  # fraction of all pairs of variables that share a factor, above which trees are single pairs


@configurable(supplied=["graph", "seed", "start"])
class Portfolio(LabellingSolver):
    """The best labelling of several solvers, and a proof where one is found.

    Args:
        patience: turns without a better labelling after which it ends; with a time limit it uses all of the time.
    """

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, patience: Count = 20) -> None:
        super().__init__(graph, seed, start)
        self.patience, self._seed = patience, seed
        self._turns, self._idle = self._plan(), 0
        self._prover: Toulbar2 | None = None

    def step(self) -> float:
        before = self.energy
        searching = next(self._turns, None)
        if self._prover is not None and not self._prover.look():
            self._adopt(self._prover)
            self._prover = None
        self._idle = 0 if self.energy < before or not searching else self._idle + 1
        if self.optimal or searching is None or (self._idle >= self.patience and self.deadline == math.inf):
            return 0.0
        return 1.0

    def close(self) -> None:
        if self._prover is not None:
            self._prover.close()

    def _plan(self) -> Iterator[bool]:
        """Take one turn after the other; yield whether it is one of those that go on for ever.

        It ends where there is no time for more.
        """
        graph, seed = self.graph, self._seed
        slots = sum(group.scopes.numel() for group in graph.couplings)
        needed = SECONDS_PER_SLOT * (graph.size + slots) + SECONDS_PER_ENTRY * graph.stored_entries
        alone = needed > (1 - EXPANSION_TIME) * self._part(1.0)  # no time for anything after the first
        if suits_expansion(graph):
            self._turn(AlphaExpansion(graph, seed, self.marginals()), 1.0 if alone else EXPANSION_TIME)
            yield False
        if large := needed > SHORTEST_TURN:
            self._solve_exactly()  # needs no arrays
            yield False
        if needed > self._part(1.0):
            return
        annealing = Annealing(graph, seed, self.marginals())
        branch = BranchAndBound(graph, seed, self.marginals())
        self._turn(annealing, 0.0)
        yield False
        dense = slots > MAX_DENSITY * len(graph) ** 2
        if dense and (labels := nearest_plane(graph)) is not None:
            self.offer(labels)
        if not large:
            self._solve_exactly()
            yield False
        if proving := not self._proof_is_hopeless():  # for large fields it depends on the bound of the next turn
            self._begin_proof()
        self._turn(branch, START_TIME)
        yield False
        searchers: list[LabellingSolver] = [annealing]
        if graph.size <= MAX_SEARCH_LABELS:
            searchers.append(IteratedDescent(graph, seed, self.marginals()))
            if not dense:
                searchers.append(LocalSearch(graph, seed, self.marginals()))
        if not self._proof_is_hopeless():
            searchers.append(branch)
            if not proving:
                self._begin_proof()
        if graph.table_entries <= MAX_MESSAGE_ENTRIES:
            result = BeliefPropagation(graph, seed, mode="max", damping=0.5).run(1000, seconds=self._part(TURN_TIME))
            self.offer(result.labels)
            yield False
        best, used = searchers[0], dict.fromkeys(searchers, 0.0)
        while True:
            member = min(searchers, key=lambda s: used[s] / (BEST_SHARE if s is best else 1.0))
            before, began = self.energy, time.perf_counter()
            self._turn(member, LOCAL_TIME if isinstance(member, LocalSearch) else 0.0)
            used[member] += time.perf_counter() - began
            best = member if self.energy < before else best
            yield True

    def _turn(self, member: LabellingSolver, share: float) -> None:
        """Let a solver take its turn from the best labelling.

        One step, or steps within a share of the remaining time while it moves.
        """
        member.offer(self._labels)
        ends = time.perf_counter() + max(self._part(share), SHORTEST_TURN if share else 0.0)
        member.deadline = min(self.deadline, ends) if share else self.deadline
        moved = member.step()
        while moved and not member.optimal and time.perf_counter() < ends:
            moved = member.step()
            if isinstance(member, BranchAndBound) and not member.sweeps:
                break
        self._adopt(member)

    def _adopt(self, member: LabellingSolver) -> None:
        self.offer(member.labels())
        self._bound = max(self._bound, min(member.bound(), self.energy))

    def _part(self, share: float) -> float:
        """Return a part of the remaining time; without a limit, of a minute."""
        return share * min(60.0, max(0.0, self.deadline - time.perf_counter()))

    def _proof_is_hopeless(self) -> bool:
        """Return whether a search cannot be expected to end: the field is large, or its bound far away."""
        size, gap = self.graph.size, self.energy - self._bound
        if size > MAX_SEARCH_LABELS or self.graph.hard or not math.isfinite(self.energy):
            return size > MAX_SEARCH_LABELS
        return any(size > labels and gap > fraction * abs(self.energy) for labels, fraction in HOPELESS)

    def _begin_proof(self) -> None:
        """Start toulbar2, if it is there and the field is not too large for it."""
        if not self.optimal and self.graph.table_entries <= toulbar2.MAX_ENTRIES and toulbar2.available():
            self._prover = Toulbar2(self.graph, self._seed, self.marginals())
            self._prover.deadline = self.deadline
            self._prover.begin()

    def _solve_exactly(self) -> None:
        """Use a junction tree, if it fits into the time."""
        if len(self.graph) > MAX_TREE_VARIABLES:
            return
        try:
            seconds = min(1.0, self._part(START_TIME))
            tree = JunctionTree(self.graph, width_limit=TREE_WIDTH, tries=TREE_TRIES, seconds=seconds)
        except TooWide:
            return
        if tree.tree.entries < TREE_SPEED * self._part(TREE_TIME):
            self.offer(tree.labels())
            self._bound = max(self._bound, self.energy)
