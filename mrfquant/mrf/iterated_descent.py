"""Kicks: move one or a few variables, let all others answer, keep what is not worse; in compiled loops.

Where factors are stiff, as those of a layer's rounding problem, no single change pays, but a change with its answers
does: a kick of one variable followed by the best answers of its neighbours contains all moves of pairs.
"""

import numpy as np
from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.mrf.annealing import Annealing
from mrfquant.mrf.factor_graph import FactorGraph

ANSWERS = 10  # variables that a kick and its answers change, roughly
SLACK = 1e-12  # least gain that counts, as a fraction of the largest difference that a factor makes


@configurable(supplied=["graph", "seed", "start"])
class IteratedDescent(Annealing):
    """Descent of single variables, again after each random kick, from the best labelling.

    Args:
        most: the most variables of a kick, neighbours of each other.
        patience: iterations in a row without a better labelling after which it ends.
    """

    def __init__(
        self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, most: Count = 3, patience: Count = 10
    ) -> None:
        super().__init__(graph, seed, start, patience=patience)
        self.most, n = most, len(graph)
        self._slack = SLACK * graph.widest
        self._queue, self._waiting = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        self._trail = np.zeros((2 * n + most, 2), np.int64)
        self._kicks = max(1, self._chunk // ANSWERS) if n else 0  # of an iteration

    def step(self) -> float:
        from mrfquant.kernels import kicks

        before, field, room = self.energy, self._arrays.layout, (self._queue, self._waiting, self._trail)
        self._begin(self._labels)
        kicks.kick(field, self._present, self._local, self._kicks, self.most, self._slack, self._state, *room)
        self.offer(self._arrays.labelling(self._present))
        self._idle = 0 if self.energy < before else self._idle + 1
        return 0.0 if self._idle >= self.patience else max(before - self.energy, 1.0)
