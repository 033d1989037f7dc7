"""Local search over blocks of variables, each set to its exact optimum given the others."""

from __future__ import annotations

import random

from torch import Tensor

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.mrf.exact import JunctionTree, TooWide
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.message_passing import BeliefPropagation
from mrfquant.mrf.solver import Solver


@configurable(supplied=["graph", "seed", "start"])
class LocalSearch(Solver):
    """ICM with blocks for variables: connected sets, drawn anew in each sweep until they cover the graph.

    It begins where damped max-product belief propagation ends, or from the labels that `start` rounds to.

    Args:
        size: of the first blocks, at most; it doubles after every sweep that found nothing better.
        width_limit: a block whose junction tree is wider is cut by a quarter until it fits.
        patience: sweeps in a row without a better labelling after which it ends.
        warm_up: iterations of belief propagation.
    """

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        size: Count = 50,
        width_limit: Positive = 16,
        patience: Count = 6,
        warm_up: Count = 100,
    ) -> None:
        super().__init__(graph, seed, start)
        self.size, self.width_limit, self.patience = size, width_limit, patience
        self._soft = graph.floored()
        self._random = random.Random(seed)
        self._neighbours = {v: sorted(near) for v, near in graph.neighbours().items()}
        if start is None:
            propagation = BeliefPropagation(graph, seed, mode="max", damping=0.5, noise=0.1)
            self._labels = propagation.run(warm_up, trace=False).labels
        else:
            self._labels = graph.argmax(start)
        self._energy = self._soft.energy(self._labels).item()
        self._idle = 0

    def step(self) -> float:
        before = self._energy
        left = set(self._neighbours)
        while left:
            block = self._grow(self._random.choice(sorted(left)))
            left -= set(self._improve(block))
        decrease = before - self._energy
        self._idle = 0 if decrease > 0 else self._idle + 1
        if not decrease:
            self.size = min(2 * self.size, len(self.graph))
        # Other blocks may succeed where these failed, so a sweep without success is no end yet.
        return 0.0 if self._idle >= self.patience else max(decrease, 1.0)

    def marginals(self) -> Tensor:
        return self.graph.one_hot(self._labels)

    def labels(self) -> Tensor:
        return self._labels

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
                found = JunctionTree(graph, width_limit=limit).labels()
                break
            except TooWide:
                block = block[: 3 * len(block) // 4]
        labels = self._labels.clone()
        labels[kept] = found
        energy = self._soft.energy(labels).item()
        if energy <= self._energy:  # rounding could make it worse
            self._labels, self._energy = labels, energy
        return block
