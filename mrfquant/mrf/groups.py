"""Tensors of all factors of one shape, or of all variables of one cardinality."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
        return Group(self.scopes[chosen], self.tables[..., chosen], index, self.hard)


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


def contract(tables: Tensor, axis: int, u: Tensor, hard: bool) -> Tensor:
    """Return the expectation over one axis, sum_l u_l T[..., l, ...], with 0 times -inf being 0: the axis is gone."""
    if hard:
        weights = along(u, axis, tables.dim())
        return torch.where(weights > 0, tables * weights, 0).sum(axis)
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
