"""Simulated annealing: Gibbs sampling at a temperature that falls, in compiled loops."""

import math
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.arrays import arrays_of
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.solver import LabellingSolver

HOT, COLD = 0.6, 0.03  # temperatures, in units of what a wrong label costs
TEMPERATURES = 50  # the most different ones of a run
ENTRIES_PER_CHUNK = 10**6  # table entries read between two looks at the clock
SHORTEST, LONGEST = 0.01, 0.5  # fractions of the remaining time that a run takes
GROWTH = 1.2  # of the length of short runs from one run to the next
LEAST_GAIN = 0.01  # of a sweep that takes cheapest labels, as a fraction of the best before it


@configurable(supplied=["graph", "seed", "start"])
class Annealing(LabellingSolver):
    """Runs of simulated annealing, short and long ones; the first takes the cheapest labels only (ICM).

    Hard constraints cost a penalty here that is as large as what any other factor can cost, so that the chain gets past
    them; labellings are compared as everywhere. A unit of temperature is the median over the variables of what a wrong
    label costs. Every fourth run starts from the best labelling, at lower temperatures.

    Args:
        sweeps: sweeps of a short run; with a time limit, a hundredth of the time, if that is more.
        patience: runs in a row without a better labelling after which it ends.
    """

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        sweeps: Count = 50,
        patience: Count = 10,
    ) -> None:
        super().__init__(graph, seed, start, graph.without_hard_constraints())
        self.sweeps, self.patience = float(sweeps), patience
        self._arrays = arrays_of(graph.without_hard_constraints(graph.widest))
        field = self._arrays.layout
        entries = int(field.cards[field.scope].sum() + field.cards.sum())  # of a sweep
        self._chunk = max(1, ENTRIES_PER_CHUNK * len(graph) // max(1, entries))
        self._state = np.array([2 * seed + 1], np.uint64)
        self._local = np.zeros(len(self._arrays.unary))
        self._begin(self._labels)
        self._runs, self._idle = 0, 0
        self._rate = math.inf  # seconds of a sweep

    def step(self) -> float:
        before, run = self.energy, self._runs
        self._runs += 1
        if run == 0:
            self._cool()
            return 1.0
        began = time.perf_counter()
        sweeps = self.sweeps * (run & -run)  # 1, 2, 1, 4, 1, 2, 1, 8, ... times
        if math.isfinite(self.deadline) and run > 1:
            left = (self.deadline - began) / self._rate  # in sweeps
            self.sweeps = max(SHORTEST * left, self.sweeps)
            sweeps = min(sweeps, LONGEST * left)
        warm = run % 4 == 3
        self._begin(self._labels)
        unit, steps = self._unit(), max(2, min(TEMPERATURES, round(sweeps)))
        if not warm:
            self._begin(self.graph.random_labels(self.generator))
        for temperature in np.geomspace(HOT * (0.5 if warm else 1.0), COLD, steps) * unit:
            if not self._sweep(temperature, max(1, round(sweeps / steps))):
                return 1.0
        self._cool()
        self._rate = (time.perf_counter() - began) / sweeps
        self.sweeps *= GROWTH
        self._idle = 0 if self.energy < before else self._idle + 1
        return 0.0 if self._idle >= self.patience else max(before - self.energy, 1.0)

    def _cool(self) -> None:
        """Take the cheapest labels until none changes, or at first until few do."""
        most, least = 0.0, LEAST_GAIN if self._runs == 1 else 0.0
        while self._sweep(0.0, 1) and self._change < least * most:
            most = min(most, self._change)
        self.offer(self._arrays.labelling(self._present))

    def _sweep(self, temperature: float, times: int) -> bool:
        """Sweep over all variables; return whether the time was enough."""
        from mrfquant.kernels import annealing

        field, labels, local = self._arrays.layout, self._present, self._local
        at_once = max(1, self._chunk // max(1, len(labels)))  # sweeps between two looks at the clock
        for first in range(0, times, at_once):
            self._change, count = 0.0, min(at_once, times - first)
            for begin, end in self._chunks():
                if self.out_of_time:
                    self.offer(self._arrays.labelling(labels))
                    return False
                self._change += annealing.sweep(field, labels, local, begin, end, count, temperature, self._state)
        return True

    def _begin(self, labels: Tensor) -> None:
        """Start from labels."""
        from mrfquant.kernels import annealing

        self._present = labels.cpu().numpy().copy()
        for begin, end in self._chunks():
            annealing.local_costs(self._arrays.layout, self._arrays.unary, self._present, self._local, begin, end)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of variables; the clock is looked at between them."""
        for begin in range(0, len(self.graph), self._chunk):
            yield begin, min(begin + self._chunk, len(self.graph))

    def _unit(self) -> float:
        """Return the median of what wrong labels cost, given the present labels of the others."""
        costs = self._arrays.flat(self._local)
        rises = torch.cat([c.planes(costs).mean(0) - c.planes(costs).amin(0) for c in self.graph.by_cardinality])
        return rises[rises > 0].median().item() if (rises > 0).any() else 1.0
