"""A factor graph as the plain arrays that compiled loops take; see `mrfquant.kernels.layout`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import Group


class Arrays:
    """A graph on the CPU in float64, variable by variable.

    Attributes:
        layout: of the factors of two variables or more.
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
            variables = c.variables.cpu()
            places = torch.from_numpy(first)[variables] + torch.arange(c.labels)[:, None]
            self._order[places] = graph.index(c.variables).cpu()
        groups = graph.couplings
        arity = np.concatenate([np.zeros(0, np.int64), *(np.full(len(g), len(g.index)) for g in groups)])
        scope = np.concatenate([np.zeros(0, np.int64), *(g.scopes.cpu().numpy().reshape(-1) for g in groups)])
        strides = np.concatenate([np.zeros(0, np.int64), *(np.tile(_strides(g.shape), len(g)) for g in groups)])
        tables, values, used = [np.zeros(0, np.int64)], [np.zeros(0)], 0
        for group in groups:
            costs, shared = _costs(group)
            tables.append(used + (np.zeros(len(group), np.int64) if shared else np.arange(len(group)) * costs.shape[1]))
            values.append(costs.reshape(-1))
            used += costs.size
        self.layout = Layout(
            cards=cards,
            first=first,
            begin=_before(arity),
            scope=scope,
            factor=np.repeat(np.arange(len(arity)), arity),
            stride=strides,
            start=_before(cards[scope]),
            table=np.concatenate(tables),
            values=np.concatenate(values),
            near=_before(np.bincount(scope, minlength=len(cards))),
            slots=np.argsort(scope, kind="stable"),
        )
        self.size = int(self.layout.start[-1])
        self.unary = self.by_variable(-graph.unary())

    def by_variable(self, flat: Tensor) -> np.ndarray:
        """A flat vector, with the labels of a variable following each other."""
        return flat.detach().cpu().double()[self._order].numpy()

    def flat(self, places: np.ndarray) -> Tensor:
        """The inverse of `by_variable`."""
        values = torch.empty(len(places), dtype=torch.float64)
        values[self._order] = torch.from_numpy(np.ascontiguousarray(places, dtype=np.float64))
        return values.to(self.graph.device, self.graph.dtype)

    def labelling(self, labels: np.ndarray) -> Tensor:
        """Labels (n,) as the solvers give them."""
        return torch.from_numpy(labels.copy()).to(self.graph.device)


def _before(counts: np.ndarray) -> np.ndarray:
    """The sums of the counts before each, and of all."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _strides(shape: tuple[int, ...]) -> np.ndarray:
    return np.cumprod([1, *shape[:0:-1]])[::-1].astype(np.int64)


def _costs(group: Group) -> tuple[np.ndarray, bool]:
    """The costs (F, entries) of a group; of one table only, and True, where all factors share it."""
    tables = group.tables.detach().cpu().double()
    shared = len(group) > 1 and tables.stride(-1) == 0
    if shared:
        tables = tables[..., :1]
    return -tables.reshape(-1, tables.shape[-1]).t().contiguous().numpy(), shared
