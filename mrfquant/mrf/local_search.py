"""Local search for the least energy, from several starts.

A move sets a set B of variables to its exact optimum given all others,

    x_B <- argmin over x_B of E(x_B, x_rest),

so no move makes a labelling worse. B is a random tree, found and solved in compiled loops, or a connected block that a
junction tree solves. Between the moves, Gumbel noise on the unary costs, falling to 0, leads out of local minima.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.mrf.arrays import Arrays
from mrfquant.mrf.coordinate import ICM, SequentialMeanField
from mrfquant.mrf.dual import DualAscent
from mrfquant.mrf.exact import JunctionTree, TooWide
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.message_passing import BeliefPropagation
from mrfquant.mrf.solver import FieldSolver
from mrfquant.schedules import Geometric

HEATS = (0.05, 0.1, 0.2, 0.4, 0.8)  # of the noise, as shares of what a wrong label costs
WORK = 10**7  # table entries that the trees of a walk look at, roughly
BLOCKS = 5000  # variables above which only trees are moved: to cut a block out takes time in their number
SHARE = 0.15  # of the time that is left, for one start at most


@configurable(supplied=["graph", "seed", "start"])
class LocalSearch(FieldSolver):
    """Moves of trees and blocks; the first labellings are those of other solvers, so it is never worse than they are.

    The starts are ICM, dual ascent, max-product belief propagation, annealed mean-field and a random labelling, or the
    labels that `start` rounds to. Each takes an iteration; then every iteration walks from the best, with little and
    with much noise, and goes over blocks where the walks find nothing.

    Args:
        size: of the first blocks, at most; it doubles after every sweep that found nothing better.
        width_limit: a block whose junction tree is wider is cut by a quarter until it fits.
        patience: iterations in a row without a better labelling after which it ends.
        warm_up: iterations of the solvers that it starts from.
        moves: of a walk, at most.
    """

    compiled = True

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
        super().__init__(graph, seed, start)
        self.size, self.width_limit, self.patience, self.warm_up = size, width_limit, patience, warm_up
        self._soft = graph.without_hard_constraints()
        self._arrays = Arrays(self._soft)
        field = self._arrays.layout
        entries = int((field.cards[field.scope] * field.stride)[field.begin[:-1]].sum())
        self.moves = max(5, min(moves, WORK // max(1, entries)))
        self._seed, self._random = seed, random.Random(seed)
        self._state = np.array([2 * seed + 1], np.uint64)
        self._neighbours = {v: sorted(near) for v, near in graph.neighbours().items()}
        self._labels = graph.argmax(graph.unary() if start is None else start)
        self._energy = self._soft.energy(self._labels).item()
        self._starts = iter(self._sources() if start is None else ())
        self._idle = 0
        self.work = 0  # table entries that walks looked at, roughly
        self._entries = entries

    def step(self) -> float:
        source = next(self._starts, None)
        if source is not None:
            self.offer(source())
            self._walk(0.0, self.moves // 5)
            return 1.0
        before = self._energy
        for heat in HEATS:
            if not self.out_of_time:
                self._walk(heat, self.moves)
        if self._energy == before and len(self.graph) <= BLOCKS:
            self._sweep()
        self._idle = 0 if self._energy < before else self._idle + 1
        # Other moves may succeed where these failed, so an iteration without success is no end yet.
        return 0.0 if self._idle >= self.patience else max(before - self._energy, 1.0)

    def marginals(self) -> Tensor:
        return self.graph.one_hot(self._labels)

    def labels(self) -> Tensor:
        return self._labels

    def offer(self, labels: Tensor) -> None:
        """Go on from a labelling if it is the best so far."""
        energy = self._soft.energy(labels).item()
        if energy < self._energy:
            self._labels, self._energy = labels.clone(), energy

    def _sources(self) -> Iterator[Callable[[], Tensor]]:
        graph, seed = self.graph, self._seed
        yield lambda: self._run(DualAscent(graph, seed))
        yield lambda: self._run(BeliefPropagation(graph, seed, mode="max", damping=0.5))
        for start in range(seed, seed + 10):
            yield partial(self._descend, start)
        yield lambda: self._run(SequentialMeanField(graph, seed, beta=Geometric(1.05, 1, 1000.0, 0.05)))
        yield lambda: self._run(BeliefPropagation(graph, seed + 1, mode="max", damping=0.5, noise=0.1))
        yield self._anywhere

    def _descend(self, seed: int) -> Tensor:
        return self._run(ICM(self.graph, seed))

    def _run(self, solver: FieldSolver) -> Tensor:
        """The labels that a solver ends with, in a part of the time."""
        left = self.deadline - time.perf_counter()
        return solver.run(self.warm_up, seconds=max(0.0, SHARE * left)).labels

    def _anywhere(self) -> Tensor:
        draw = torch.rand(len(self.graph), generator=self.generator, device=self.graph.device)
        return (draw * self.graph.cardinalities).long().clamp_(max=self.graph.cardinalities - 1)

    def _walk(self, heat: float, moves: int) -> None:
        """Moves of trees, from the best labelling."""
        from mrfquant.kernels import tree_moves

        field, labels = self._arrays.layout, self._labels.cpu().numpy().copy()
        best = labels.copy()
        scale = heat * self._price() if heat else 0.0
        began = time.perf_counter()
        ends = min(self.deadline, began + SHARE * (self.deadline - began))
        left = max(1, moves)
        while left and (left >= moves or time.perf_counter() < ends):
            part = max(1, moves // 5)
            tree_moves.walk(
                field, self._arrays.unary, labels, self._state, part, len(labels), scale * left / self.moves, best
            )
            left = max(0, left - part)
            self.work += part * self._entries
        self.offer(self._arrays.labelling(best))

    def _price(self) -> float:
        """What a wrong label costs: the median over the variables of the mean over labels, above the least."""
        fields = self._soft.fields(self.marginals())
        costs = [c.planes(fields).amax(0) - c.planes(fields).mean(0) for c in self.graph.by_cardinality]
        return torch.cat(costs).median().item()

    def _sweep(self) -> None:
        """Moves of blocks, drawn anew until they cover the graph."""
        before = self._energy
        left = set(self._neighbours)
        while left and not self.out_of_time:
            block = self._grow(self._random.choice(sorted(left)))
            left -= set(self._improve(block))
        if self._energy == before:
            self.size = min(2 * self.size, len(self.graph))

    def _grow(self, first: int) -> list[int]:
        """Up to `size` variables around the first, neighbours in random order."""
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
        """Set a block to its best labels given the others; returns the part of it that was not too wide."""
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
        self.offer(labels)  # rounding could make it worse
        return block
