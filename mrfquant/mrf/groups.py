"""Tensors of all factors of one shape, or of all variables of one cardinality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ENTRIES_PER_COPY = 2**16
WORTH_SHARING = 2**20  # entries of tables that are compared with each other


@dataclass(frozen=True)
class Group:
    """F factors of one shape (c_1, ..., c_k)."""

    scopes: Tensor  # (F, k) their variables
    tables: Tensor  # (c_1, ..., c_k, F) log-potentials; one table for all may be expanded
    index: tuple[Tensor, ...]  # for each axis a, (c_a, F) the places of its variables in a flat vector
    hard: bool  # whether a table forbids anything

    def __len__(self) -> int:
        return len(self.scopes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of labels along each axis."""
        return tuple(self.tables.shape[:-1])

    @property
    def stored(self) -> Tensor:
        """The tables that are in memory: (..., 1) if all factors share one."""
        return stored(self.tables)

    def gather(self, flat: Tensor, axis: int) -> Tensor:
        """Return the flat vector's entries for the variables of an axis: (c_axis, F)."""
        index = self.index[axis]
        return flat.index_select(0, index.reshape(-1)).view(index.shape)

    def scatter(self, flat: Tensor, axis: int, message: Tensor) -> None:
        """Add a message (c_axis, F) to the flat vector's entries for the variables of an axis."""
        flat.index_add_(0, self.index[axis].reshape(-1), message.reshape(-1))

    def part(self, chosen: Tensor | slice) -> Group:
        """Return some of the factors, by number."""
        index = tuple(i[:, chosen].contiguous() for i in self.index)
        return Group(self.scopes[chosen], pick(self.tables, chosen), index, self.hard)


@dataclass(frozen=True)
class Cardinality:
    """The variables with `labels` labels: their numbers (m,), and where their planes lie in a flat vector."""

    labels: int
    variables: Tensor
    start: int

    def planes(self, flat: Tensor) -> Tensor:
        """Return the part of a flat vector that belongs to these variables, a view (labels, m)."""
        size = self.labels * len(self.variables)
        return flat[self.start : self.start + size].view(self.labels, -1)


def is_shared(tables: Tensor) -> bool:
    """Return whether all factors (..., F) have one table in memory, expanded."""
    return tables.shape[-1] > 1 and tables.stride(-1) == 0


def stored(tables: Tensor) -> Tensor:
    """Return the tables (..., F) that are in memory, one where all factors share it."""
    return tables[..., :1] if is_shared(tables) else tables


def share(tables: Tensor) -> Tensor:
    """Return large tables (..., F) as one that is expanded, if all are equal."""
    if is_shared(tables) or tables.requires_grad or tables.shape[-1] < 2 or tables.numel() < WORTH_SHARING:
        return tables
    first = tables[..., :1]
    if not torch.equal(first[..., 0], tables[..., -1]) or not bool((tables == first).all()):
        return tables
    return first.contiguous().expand(tables.shape)


def pick(tables: Tensor, chosen: Tensor | slice) -> Tensor:
    """Return the tables (..., F) of some factors; one for all stays one."""
    if not is_shared(tables):
        return tables[..., chosen]
    count = len(chosen) if isinstance(chosen, Tensor) else len(range(tables.shape[-1])[chosen])
    return tables[..., :1].expand(*tables.shape[:-1], count)


def by_factor(tables: Tensor, out: Tensor | None = None) -> Tensor:
    """Copy tables (..., F) to (F, entries), side by side for each factor, in parts that fit into a cache."""
    count = tables.shape[-1]
    flat = tables.reshape(-1, count)
    size = len(flat)
    out = tables.new_empty(count, size) if out is None else out
    if size > count:
        for at in range(0, size, step := max(1, ENTRIES_PER_COPY // count)):
            out[:, at : at + step] = flat[at : at + step].t()
    else:
        for at in range(0, count, step := max(1, ENTRIES_PER_COPY // max(1, size))):
            out[at : at + step] = flat[:, at : at + step].t()
    return out


def map_tables(function: Callable[[Tensor], Tensor], tables: Tensor) -> Tensor:
    """Apply a function of each table by itself, once where all factors share one."""
    if not is_shared(tables):
        return function(tables)
    result = function(tables[..., :1])
    return result.expand(*result.shape[:-1], tables.shape[-1])


def contract(tables: Tensor, axis: int, u: Tensor, hard: bool) -> Tensor:
    """Return the expectation over one axis, sum_l u_l T[..., l, ...], with 0 times -inf being 0: the axis is gone."""
    if hard:
        weights = along(u, axis, tables.dim())
        return torch.where(weights > 0, tables * weights, 0).sum(axis)
    if tables.shape[-1] == 1 or is_shared(tables):
        return torch.tensordot(tables[..., 0], u, dims=([axis], [0]))
    total = tables.select(axis, 0) * u[0]
    for label in range(1, len(u)):
        total.addcmul_(tables.select(axis, label), u[label])
    return total


def along(values: Tensor, axis: int, dims: int) -> Tensor:
    """Return values (c_axis, F) in a shape that broadcasts with a group's tables of so many dimensions."""
    shape = [1] * dims
    shape[axis], shape[-1] = values.shape
    return values.view(shape)


def field(group: Group, axis: int, u: Tensor) -> Tensor:
    """Return the expected log-potentials of a group for each label of the variables of an axis: (c_axis, F)."""
    mean = group.tables
    for other in reversed([a for a in range(len(group.index)) if a != axis]):
        mean = contract(mean, other, group.gather(u, other), group.hard)
    return mean


def take(tables: Tensor, axis: int, labels: Tensor) -> Tensor:
    """Return each table (..., F) at a label (F,) of one axis: the axis is gone."""
    index = labels.view([1] * (tables.dim() - 1) + [-1]).expand([*tables.shape[:axis], 1, *tables.shape[axis + 1 :]])
    return tables.gather(axis, index).squeeze(axis)
