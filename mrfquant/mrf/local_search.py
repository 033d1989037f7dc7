"""Local search for the least energy, from several starts.

A move sets a set B of variables to its exact optimum given all others,

    x_B <- argmin over x_B of E(x_B, x_rest),

so no move makes a labelling worse. B is a random tree, found and solved in compiled loops, or a connected block that a
junction tree solves. Gumbel noise on the unary costs, falling to 0, helps to leave local minima.
"""

import random
import time
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.mrf.annealing import Annealing
from mrfquant.mrf.arrays import arrays_of
from mrfquant.mrf.dual import DualAscent
from mrfquant.mrf.exact import JunctionTree, TooWide
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.message_passing import BeliefPropagation
from mrfquant.mrf.solver import FieldSolver, LabellingSolver

NOISE_LEVELS = (0.05, 0.1, 0.2, 0.4, 0.8)  # in units of the cost of a wrong label
WALK_WORK = 10**7  # table entries that the trees of a walk read, roughly
MILD = 2.0  # penalty of a walk for what is forbidden, in units of what any other factor can cost
MAX_BLOCK_VARIABLES = 5000  # above, only trees are moved: to cut out a block takes time linear in all variables
MAX_BLOCK_ENTRIES = 10**6  # the same for tables
MAX_NEIGHBOURS = 100  # of a variable, on average: blocks of denser fields are as wide as they are large
TIME_PER_START = 0.15  # the most time of a start or a walk, as a fraction of the remaining time


@configurable(supplied=["graph", "seed", "start"])
class LocalSearch(LabellingSolver):
    """Moves of trees and blocks, from the labellings of other solvers, so it is never worse than they are.

    The starts are dual ascent, max-product belief propagation, annealing and a random labelling, or the labels that
    `start` rounds to. Each takes an iteration; then every iteration walks from the best labelling, with little and with
    much noise, and moves blocks if the walks find nothing.

    Args:
        size: the most variables of the first blocks; it doubles after every sweep that found nothing better.
        width_limit: a block whose junction tree is wider is cut by a quarter until it fits.
        patience: iterations in a row without a better labelling after which it ends.
        warm_up: iterations of the solvers that it starts from.
        moves: the most moves of a walk.
    """

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        size: Count = 50,
        width_limit: Positive = 16,
        patience: Count = 10,
        warm_up: Count = 1000,
        moves: Count = 1000,
    ) -> None:
        super().__init__(graph, seed, start, graph.without_hard_constraints())
        self.size, self.width_limit, self.patience, self.warm_up = size, width_limit, patience, warm_up
        self._mild = graph.without_hard_constraints(MILD * graph.widest)  # what is walked on
        self._arrays = arrays_of(self._mild)
        field = self._arrays.layout
        self._entries = int((field.cards[field.scope] * field.stride)[field.begin[:-1]].sum())
        self.moves = max(5, min(moves, WALK_WORK // max(1, self._entries)))
        self._random, self._state = random.Random(seed), np.array([2 * seed + 1], np.uint64)
        thin = sum(len(g) * len(g.index) ** 2 for g in graph.couplings) <= MAX_NEIGHBOURS * len(graph)
        self._has_blocks = thin and len(graph) <= MAX_BLOCK_VARIABLES and graph.table_entries <= MAX_BLOCK_ENTRIES
        self._starts = self._labellings(seed) if start is None else iter(())
        self._idle = 0

    def step(self) -> float:
        labels = next(self._starts, None)
        if labels is not None:
            self.offer(labels)
            self._walk(0.0, self.moves // 5)
            return 1.0
        before = self.energy
        for noise in NOISE_LEVELS:
            if not self.out_of_time:
                self._walk(noise, self.moves)
        if self.energy == before and self._has_blocks:
            self._sweep()
        self._idle = 0 if self.energy < before else self._idle + 1
        # Other random moves may succeed where these failed, so an iteration without success is not the end.
        return 0.0 if self._idle >= self.patience else max(before - self.energy, 1.0)

    def _labellings(self, seed: int) -> Iterator[Tensor]:
        """Yield the labellings to start from."""
        graph = self.graph
        yield self._run(DualAscent(graph, seed))
        yield self._run(BeliefPropagation(graph, seed, mode="max", damping=0.5))
        yield self._run(Annealing(graph, seed), 10)
        yield self._run(BeliefPropagation(graph, seed + 1, mode="max", damping=0.5, noise=0.1))
        yield graph.random_labels(self.generator)

    def _run(self, solver: FieldSolver, iterations: int | None = None) -> Tensor:
        """Return the labels that a solver finds in a part of the time."""
        left = self.deadline - time.perf_counter()
        return solver.run(iterations or self.warm_up, seconds=max(0.0, TIME_PER_START * left)).labels

    def _walk(self, noise: float, moves: int) -> None:
        """Move trees, from the best labelling."""
        from mrfquant.kernels import tree_moves

        field, labels = self._arrays.layout, self._labels.cpu().numpy().copy()
        best = labels.copy()
        scale = 0.0
        if noise:  # in units of the cost of a wrong label: the median over the variables of the mean above the least
            fields = self._mild.fields(self.marginals())
            costs = [c.planes(fields).amax(0) - c.planes(fields).mean(0) for c in self.graph.by_cardinality]
            scale = noise * torch.cat(costs).median().item()
        began = time.perf_counter()
        ends = min(self.deadline, began + TIME_PER_START * (self.deadline - began))
        left, part = max(1, moves), max(1, moves // 5)
        while left and (left >= moves or time.perf_counter() < ends):
            heat = scale * left / self.moves
            tree_moves.walk(field, self._arrays.unary, labels, self._state, part, len(labels), heat, best)
            left = max(0, left - part)
        self.offer(self._arrays.labelling(best))

    @cached_property
    def _neighbours(self) -> dict[int, list[int]]:
        return {v: sorted(near) for v, near in self.graph.neighbours().items()}

    def _sweep(self) -> None:
        """Move random blocks until they have covered the graph."""
        before = self.energy
        left = set(self._neighbours)
        while left and not self.out_of_time:
            block = self._grow(self._random.choice(sorted(left)))
            left -= set(self._improve(block))
        if self.energy == before:
            self.size = min(2 * self.size, len(self.graph))

    def _grow(self, first: int) -> list[int]:
        """Return up to `size` variables around the first, neighbours in random order."""
        block: list[int] = []
        seen, edge = {first}, [first]
        while edge and len(block) < self.size:
            variable = edge.pop(self._random.randrange(len(edge)))
            block.append(variable)
            fresh = [v for v in self._neighbours[variable] if v not in seen]
            seen.update(fresh)
            edge += fresh
        return block

    def _improve(self, block: list[int]) -> list[int]:
        """Set a block to its best labels given the others; return the part of it that was not too wide."""
        while True:
            inside = set(block)
            fixed = {v: label for v, label in enumerate(self._labels.tolist()) if v not in inside}
            graph, kept = self._soft.condition(fixed)
            try:
                limit = self.width_limit if len(block) > 1 else 64  # the labels of one variable always fit
                found = JunctionTree(graph, width_limit=limit, tries=1).labels()
                break
            except TooWide:
                block = block[: 3 * len(block) // 4]
        labels = self._labels.clone()
        labels[kept] = found
        self.offer(labels)
        return block
