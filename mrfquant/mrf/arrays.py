"""A factor graph as the plain arrays that compiled loops take; see `mrfquant.kernels.layout`."""

import math

import numpy as np
import torch
from torch import Tensor

from mrfquant.mrf.clique_tree import check_memory
from mrfquant.mrf.contradiction import contradiction
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import by_factor, is_shared


class Arrays:
    """A graph on the CPU in float64, variable by variable.

    Attributes:
        layout: layout of the factors of two variables or more.
        unary: the costs of single variables, by place.
        size: the length of a vector of all messages.
    """

    def __init__(self, graph: FactorGraph) -> None:
        from mrfquant.kernels.layout import Layout  # numba takes a second to import

        self.graph = graph
        cards = graph.cardinalities.cpu().numpy()
        first = _before(cards)
        self._order = torch.empty(int(first[-1]), dtype=torch.int64)  # of each place, where it is in a flat vector
        for c in graph.by_cardinality:
            places = torch.from_numpy(first)[c.variables.cpu()] + torch.arange(c.labels)[:, None]
            self._order[places] = graph.index(c.variables).cpu()
        arities, scopes, strides, tables = ([np.zeros(0, np.int64)] for _ in range(4))
        values, used = np.empty(_entries(graph)), 0
        for group in graph.couplings:
            count, shared, size = len(group), is_shared(group.tables), math.prod(group.shape)
            stored = group.stored.detach().cpu()
            costs = values[used : used + size * stored.shape[-1]].reshape(-1, size)
            by_factor(stored, torch.from_numpy(costs)).neg_()
            arities.append(np.full(count, len(group.shape)))
            scopes.append(group.scopes.cpu().numpy().reshape(-1))
            strides.append(np.tile(np.cumprod([1, *group.shape[:0:-1]])[::-1].astype(np.int64), count))
            tables.append(used + np.arange(count) * (0 if shared else size))
            used += costs.size
        arity, scope, stride, table = (np.concatenate(part) for part in (arities, scopes, strides, tables))
        factor, slots = np.repeat(np.arange(len(arity)), arity), np.argsort(scope, kind="stable")
        begin, start = _before(arity), _before(cards[scope])
        near = _before(np.bincount(scope, minlength=len(cards)))
        self.layout = Layout(cards, first, begin, scope, factor, stride, start, table, values, near, slots)
        self.size = int(start[-1])
        self.unary = -graph.unary().detach().cpu().double()[self._order].numpy()

    def flat(self, places: np.ndarray) -> Tensor:
        """Return values by place as a flat vector."""
        values = torch.empty(len(places), dtype=torch.float64)
        values[self._order] = torch.from_numpy(np.ascontiguousarray(places, dtype=np.float64))
        return values.to(self.graph.device, self.graph.dtype)

    def labelling(self, labels: np.ndarray) -> Tensor:
        """Return labels (n,) as a tensor on the graph's device."""
        return torch.from_numpy(labels.copy()).to(self.graph.device)


def arrays_of(graph: FactorGraph) -> Arrays:
    """Return the arrays of a graph, which all of its solvers share."""
    if graph.compiled is None:
        graph.compiled = Arrays(graph)
    return graph.compiled


def _before(counts: np.ndarray) -> np.ndarray:
    """Return the sums of the counts before each, and of all."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _entries(graph: FactorGraph) -> int:
    """Return the number of entries of the tables that are stored; refuse those that do not fit into the memory."""
    advice = "share tables between factors, or use a solver of tensors such as SequentialMeanField"
    check_memory(8 * graph.stored_entries, "a copy of the field's tables", advice)
    return graph.stored_entries


def possible_labels(graph: FactorGraph) -> Tensor:
    """Return for every label of every variable, flat, whether propagation of hard constraints leaves it: bool.

    A label of a variable is possible for a factor if the factor allows it together with possible labels of its other
    variables. A label that is not possible for some factor has probability 0; without it others may become impossible,
    until nothing changes (generalised arc consistency).
    """
    possible = ~torch.isneginf(graph.unary())
    if any(group.hard for group in graph.couplings):
        from mrfquant.kernels.branch import propagate

        arrays = arrays_of(graph)
        unary = arrays.unary.copy()
        propagate(arrays.layout, unary)
        possible = arrays.flat(unary < np.inf) > 0
    for c in graph.by_cardinality:
        if not c.planes(possible).any(0).all():
            raise contradiction()
    return possible
