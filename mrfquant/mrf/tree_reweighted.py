"""Tree-reweighted belief propagation: belief propagation with weights that make it convex, and bound log Z.

The variables are ordered. Every factor has a weight w_a such that the weights of the factors in which a variable is not
the last sum to at most 1; the rest of the 1 is w_i. By a chain of conditional entropies, the entropy counted here is at
least the true one. And with U_i the terms of the score that remain for a variable when each factor is written as a
product of conditional distributions, the first given the later ones,

    log Z  <=  sum_i w_i log sum_{x_i} exp(U_i / w_i)

by Hölder's inequality, for any messages; at the fixed point it is what the messages maximise.
"""

from __future__ import annotations

import heapq
import math

import torch
from torch import Tensor

from mrfquant.config.settings import Damping, NonNegative, configurable
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import Group
from mrfquant.mrf.message_passing import BeliefPropagation

ZERO_WEIGHT = 1e-9  # a smaller weight is a floating-point error


@configurable(supplied=["graph", "seed", "start"])
class TreeReweighted(BeliefPropagation):
    """Tree-reweighted belief propagation (after Wainwright et al., 2005): an upper bound on log Z at any messages."""

    direction = "upper bound"

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        damping: Damping = 0.5,
        noise: NonNegative = 1e-3,
    ) -> None:
        super().__init__(graph.merged(), seed, start, "sum", damping, noise=noise)
        self._best = math.inf

    def log_z(self) -> float:
        """Return the lowest bound so far."""
        beliefs, rest = self._beliefs, torch.ones_like(self._beliefs)  # rest: w_i, for every (variable, label)
        left = torch.where(torch.isneginf(beliefs), 0, beliefs)
        terms = left.clone()
        for g, group in enumerate(self._groups):
            joint = self._joint(g, group.tables, self._incoming(g))
            for axis, message in enumerate(self._messages[g]):
                w = torch.broadcast_to(self._w[g], message.shape)
                last = self._last[g] == axis
                group.scatter(terms, axis, -w * group.gather(left, axis))
                group.scatter(rest, axis, torch.where(last, 0, -w))
                if last.any():
                    others = [a for a in range(len(group.index)) if a != axis]
                    own = joint[..., last].logsumexp(others)
                    terms.index_add_(0, group.index[axis][:, last].reshape(-1), (w[:, last] * own).reshape(-1))
        terms = torch.where(torch.isneginf(beliefs), -math.inf, terms)
        total = self.graph.constant
        for c in self.graph.by_cardinality:
            weight, planes = c.planes(rest)[0], c.planes(terms)
            top, safe = planes.amax(0), weight.clamp(min=ZERO_WEIGHT)
            soft = torch.where(weight > ZERO_WEIGHT, safe * ((planes - top) / safe).logsumexp(0), 0)
            total += (top + soft).sum().item()
        self._best = min(self._best, total)
        return self._best

    def _set_weights(self) -> None:
        rank = _order(self.graph, self._groups)
        self._last = [rank[group.scopes].argmax(1) for group in self._groups]
        count = torch.zeros(len(self.graph), dtype=self.graph.dtype, device=self.graph.device)
        inside = [torch.arange(group.scopes.shape[1], device=rank.device) for group in self._groups]
        inside = [axes != last[:, None] for axes, last in zip(inside, self._last, strict=True)]
        for group, first in zip(self._groups, inside, strict=True):
            count.index_add_(0, group.scopes.reshape(-1), first.reshape(-1).to(count.dtype))
        self._w = [
            torch.where(first, 1 / count[group.scopes].clamp(min=1), 1).amin(1)
            for group, first in zip(self._groups, inside, strict=True)
        ]


def _order(graph: FactorGraph, groups: list[Group]) -> Tensor:
    """Rank the variables: next is the one that is in the fewest factors with another variable left."""
    near: list[list[int]] = [[] for _ in range(len(graph))]
    scopes = [scope for group in groups for scope in group.scopes.tolist()]
    for f, scope in enumerate(scopes):
        for v in scope:
            near[v].append(f)
    count, left = [len(factors) for factors in near], [len(scope) for scope in scopes]
    heap = [(many, v) for v, many in enumerate(count)]
    heapq.heapify(heap)
    rank = [-1] * len(graph)
    done = 0
    while heap:
        many, v = heapq.heappop(heap)
        if rank[v] >= 0 or many != count[v]:
            continue
        rank[v], done = done, done + 1
        for f in near[v]:
            left[f] -= 1
            if left[f] == 1:  # its last variable is not counted there
                w = next(w for w in scopes[f] if rank[w] < 0)
                count[w] -= 1
                heapq.heappush(heap, (count[w], w))
    return torch.tensor(rank, device=graph.device)
