"""Find the labels that hard constraints rule out, by propagation, and remove them from a graph.

A label of a variable is possible for a factor if the factor allows it together with possible labels of its other
variables. A label that is not possible for some factor has probability 0; without it others may become impossible,
until nothing changes (generalised arc consistency).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mrfquant.mrf.arrays import Arrays
from mrfquant.mrf.factor_graph import FactorGraph, contradiction


def possible_labels(graph: FactorGraph) -> Tensor:
    """Return for every label of every variable, flat, whether propagation leaves it: bool."""
    possible = ~torch.isneginf(graph.unary())
    if any(group.hard for group in graph.couplings):
        from mrfquant.kernels.branch import propagate

        arrays = Arrays(graph)
        unary = arrays.unary.copy()
        propagate(arrays.layout, unary)
        possible = arrays.flat(unary < np.inf) > 0
    for c in graph.by_cardinality:
        if not c.planes(possible).any(0).all():
            raise contradiction()
    return possible


def restrict(graph: FactorGraph, possible: Tensor) -> tuple[FactorGraph, Tensor]:
    """Return the graph of the possible labels, and the places of its flat vectors in those of the old graph."""
    if possible.all():
        return graph, torch.arange(graph.size, device=graph.device)
    rows = [torch.tensor(row).nonzero()[:, 0] for row in graph.per_variable(possible.double())]
    cut = graph.cardinalities.tolist()
    whole = torch.tensor([len(row) == c for row, c in zip(rows, cut, strict=True)], device=graph.device)
    groups, factors = [], []
    for group in graph.groups:
        same = whole[group.scopes].all(1)
        chosen = same.nonzero()[:, 0]
        if len(chosen):
            groups.append((group.scopes[chosen], group.tables[..., chosen]))
        for f in (~same).nonzero()[:, 0].tolist():
            scope, table = group.scopes[f].tolist(), group.tables[..., f]
            for axis, v in enumerate(scope):
                table = table.index_select(axis, rows[v].to(table.device))
            factors.append((scope, table))
    small = FactorGraph([len(row) for row in rows], factors, groups, graph.constant, graph.dtype, graph.device)
    places = torch.empty(small.size, dtype=torch.int64, device=graph.device)
    for c in small.by_cardinality:
        for v in c.variables.tolist():
            one = torch.tensor([v], device=graph.device)
            places[small.index(one)[:, 0]] = graph.index(one)[:, 0][rows[v].to(graph.device)]
    return small, places
