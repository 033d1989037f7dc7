"""Graph cuts: exact for two labels and submodular couplings, and moves of many variables at once for more.

In a move to label y every variable keeps its label (0) or takes y (1). With the costs of a pair

    A = θ(x_i, x_j),  B = θ(x_i, y),  C = θ(y, x_j),  D = θ(y, y),

the best choice of all variables together is a minimum cut: an arc i -> j of capacity B + C - A - D, and C - A more for
i and D - C more for j to take y (Boykov, Veksler and Zabih, 2001). If A + D <= B + C for all labels, as for metrics,
the cut is exact. Otherwise the capacity is 0, and the move is made if it improves the labelling.
"""

import time

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.errors import BadInput
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import take
from mrfquant.mrf.result import OPTIMALITY_TOLERANCE
from mrfquant.mrf.solver import LabellingSolver

SECONDS_PER_ARC = 3e-7  # of a minimum cut, roughly
SAMPLE = 64  # tables of each shape that are looked at
MAX_LABELS = 128  # of a table that is looked at
MIN_SUITED = 0.9  # fraction of the moves of a pair that have to be submodular
SUBMODULAR_TOLERANCE = 1e-12  # relative floating-point error of a coupling that counts as submodular


def suits_expansion(graph: FactorGraph) -> bool:
    """Return whether most expansion moves of most pairs are submodular, A + D <= B + C, as for metrics."""
    if any(len(group.index) > 2 for group in graph.groups) or not graph.couplings:
        return False
    suited = []
    for group in graph.couplings:
        if group.shape[0] != group.shape[1] or group.shape[0] > MAX_LABELS:
            return False
        step = max(1, len(group) // SAMPLE)
        for costs in (-group.stored[..., ::step]).unbind(-1):
            around = costs.t()[:, :, None] + costs[:, None, :]  # B + C by (target, x, y)
            stays = costs[None] + costs.diagonal()[:, None, None]
            suited.append((stays <= around + SUBMODULAR_TOLERANCE).double().mean().item())
    return sum(suited) >= MIN_SUITED * len(suited)


@configurable(supplied=["graph", "seed", "start"])
class AlphaExpansion(LabellingSolver):
    """Moves to each label in turn until none helps; for two labels and submodular couplings the first is the optimum.

    It takes factors of at most two variables.
    """

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        super().__init__(graph, seed, start, graph.without_hard_constraints())
        largest = max((len(group.index) for group in graph.groups), default=0)
        if largest > 2:
            told = f"AlphaExpansion takes factors of at most two variables, one has {largest}"
            raise BadInput(f"{told}: use LocalSearch or Portfolio")
        self._unary = self._soft.unary().neg()
        self._sort_arcs()
        self._seconds = SECONDS_PER_ARC * len(self._head)  # of a move, until the first is made
        self._binary = int(graph.cardinalities.max()) == 2 if len(graph) else True
        if start is None or self._binary:
            self._labels = torch.zeros_like(graph.cardinalities)
            self.energy = self._soft.energy(self._labels).item()

    def step(self) -> float:
        before = self.energy
        for alpha in reversed(range(int(self.graph.cardinalities.max()))):
            began = time.perf_counter()
            if began + self._seconds > self.deadline:
                break
            self._expand(alpha)
            self._seconds = time.perf_counter() - began
        return before - self.energy

    def _expand(self, alpha: int) -> None:
        """Move to a label."""
        graph, labels = self.graph, self._labels
        target = torch.where(graph.cardinalities > alpha, alpha, labels)
        keep, take_ = self._costs(labels), self._costs(target)
        submodular, least, flags = self._minimum_cut(labels, target, keep, take_)
        found = torch.where(torch.from_numpy(flags).to(labels.device), target, labels)
        if self._binary and submodular and alpha and not labels.any() and self._soft is graph:
            # All labellings were candidates.
            self._bound = min(least - graph.constant, graph.energy(found).item())
        energy = least - graph.constant if submodular else self._soft.energy(found).item()
        if energy < self.energy - OPTIMALITY_TOLERANCE * max(1.0, abs(energy)):
            self._labels, self.energy = found, energy

    def _costs(self, labels: Tensor) -> Tensor:
        """Return the unary costs of the labels: (n,)."""
        costs = torch.empty(len(labels), dtype=self.graph.dtype, device=self.graph.device)
        for c in self.graph.by_cardinality:
            costs[c.variables] = c.planes(self._unary).gather(0, labels[c.variables][None])[0]
        return costs

    def _sort_arcs(self) -> None:
        """Sort the arcs of all pairs by the node that they leave."""
        pairs = [group.scopes.cpu().numpy() for group in self._soft.couplings]
        edges = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
        tails = np.concatenate([edges[:, 0], edges[:, 1]])
        order = np.argsort(tails, kind="stable")
        self._place = np.empty_like(order)  # of the arcs there (first half) and back in the sorted list
        self._place[order] = np.arange(len(order))
        self._first = np.concatenate([[0], np.cumsum(np.bincount(tails, minlength=len(self.graph)))]).astype(np.int64)
        self._head = np.concatenate([edges[:, 1], edges[:, 0]])[order]
        self._sister = self._place[(order + len(edges)) % max(1, len(order))]
        self._edges = edges

    def _minimum_cut(
        self, labels: Tensor, target: Tensor, keep: Tensor, take_: Tensor
    ) -> tuple[bool, float, np.ndarray]:
        """Return whether the cut is exact, its value, and which variables take the target."""
        from mrfquant.kernels.max_flow import SOURCE, max_flow

        a, b, c, d = (self._pairs(x, y) for x in (labels, target) for y in (labels, target))
        capacity, n = b + c - a - d, len(labels)
        extra = (take_ - keep).cpu().double().numpy() + np.bincount(self._edges[:, 0], c - a, n)
        extra += np.bincount(self._edges[:, 1], d - c, n)
        size = 1 + np.abs(a) + np.abs(b) + np.abs(c) + np.abs(d)
        submodular = bool((capacity >= -SUBMODULAR_TOLERANCE * size).all())
        rest = np.zeros(len(self._head))
        rest[self._place[: len(capacity)]] = np.maximum(capacity, 0)
        tree = np.zeros(len(extra), np.int64)
        constant = keep.sum().item() + a.sum() + np.minimum(extra, 0).sum()
        flow = max_flow(self._first, self._head, self._sister, rest, extra, tree)
        return submodular, constant + flow, tree != SOURCE

    def _pairs(self, first: Tensor, second: Tensor) -> np.ndarray:
        """Return the costs of all pairs, with labels for their first and for their second variables."""
        costs = [np.zeros(0)]
        for group in self._soft.couplings:
            tables = take(take(group.tables, 1, second[group.scopes[:, 1]]), 0, first[group.scopes[:, 0]])
            costs.append(-tables.cpu().double().numpy())
        return np.concatenate(costs)
