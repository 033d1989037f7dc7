"""Small random fields of every kind, and their exact results by listing all labellings."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mrfquant.mrf import FactorGraph

EDGES = {
    "tree": [(0, 1), (1, 2), (1, 3), (3, 4)],
    "grid": [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)],
    "full": list(itertools.combinations(range(4), 2)),
}
LABELS = {"2": (2,), "3": (3,), "mixed": (3, 2)}
COUPLINGS = ("random", "attractive", "repulsive", "constrained")
NAMES = ["-".join(names) for names in itertools.product(EDGES, LABELS, COUPLINGS)]
# A third of them in which every shape meets all labels and all couplings, and all labels meet all couplings.
THIRD = ["-".join((s, list(LABELS)[(i + j) % 3], c)) for i, s in enumerate(EDGES) for j, c in enumerate(COUPLINGS)]

FEW = ["tree-2-constrained", "grid-mixed-attractive", "full-3-repulsive"]


@dataclass(frozen=True)
class Truth:
    """Exact log Z, marginals of every variable and of every factor, and least energy of a field."""

    log_z: float
    marginals: Tensor
    optimum: float
    factor_marginals: list[Tensor]


def field(name: str) -> FactorGraph:
    """Build a field by its name, as grid-mixed-attractive, with the same numbers at every call."""
    shape, labels, coupling = name.split("-")
    random, edges = torch.Generator().manual_seed(0), EDGES[shape]
    kinds = itertools.cycle(LABELS[labels])
    cardinalities = [next(kinds) for _ in range(1 + max(itertools.chain(*edges)))]
    factors = [([v], _draw(random, c)) for v, c in enumerate(cardinalities)]
    for a, b in edges:
        table = _draw(random, cardinalities[a], cardinalities[b])
        if coupling in ("attractive", "repulsive"):
            strength = table[0, 0].abs() * (1 if coupling == "attractive" else -1)
            table = strength * torch.eye(*table.shape, dtype=table.dtype)
        if coupling == "constrained" and (a, b) == edges[0]:
            table[0, 0] = -math.inf
        factors.append(([a, b], table))
    return FactorGraph(cardinalities, factors)


@functools.cache
def truth(name: str) -> Truth:
    """Return the exact results of a field by its name."""
    return truth_about(field(name))


def truth_about(graph: FactorGraph) -> Truth:
    """Compute the exact results of a field by listing all labellings."""
    labels = torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))))
    scores = graph.score(labels)
    p = scores.softmax(0)
    rows = [torch.bincount(labels[:, v], p, int(c)).tolist() for v, c in enumerate(graph.cardinalities)]
    shares = []
    for group in graph.groups:
        share = torch.zeros(group.tables.shape, dtype=p.dtype)
        every = torch.arange(len(group)).expand(len(labels), -1)
        entries = (*labels[:, group.scopes].unbind(-1), every)
        shares.append(share.index_put_(entries, p[:, None].expand(every.shape), accumulate=True))
    return Truth(scores.logsumexp(0).item(), graph.flat(rows), -scores.max().item(), shares)


def same(one: FactorGraph, two: FactorGraph) -> bool:
    """Return whether two graphs have the same factors, to the bit."""

    def tensors(graph: FactorGraph) -> Iterator[Tensor]:
        yield graph.cardinalities
        for group in graph.groups:
            yield from (group.scopes, group.tables, *group.index)

    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(two), strict=True))


def _draw(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.float64)
