"""The tensors that an optimizer drives for a solver: whole vectors, or a matrix for each layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling import FlatParameters, Labelling
from mrfquant.labelling.shards import Shards


@dataclass
class OptimizerView:
    """A tensor that an optimizer moves: one of a solver's, or a view of a part of it.

    Attributes:
        base: the solver's tensor.
        parameters: those of the network that it stands for.
        group: the number of their group.
        index: of the part within the base; None if it is all of it.
        shape: of the part; None as it is.
        transposed: whether the part is the transpose of what lies in memory in this shape.
        shared: where processes share it, how, and from where to where it lies as a whole.
    """

    base: Tensor
    parameters: list[nn.Parameter]
    group: int
    index: Any = None
    shape: tuple[int, ...] | None = None
    transposed: bool = False
    shared: tuple[Shards, int, int] | None = None

    def __post_init__(self) -> None:
        self.tensor = self.slice(self.base)

    def cut(self, whole: Tensor) -> Tensor:
        """Return this process's shard of a whole tensor of the view's size; other sizes as they are."""
        if self.shared is None or whole.dim() != self.tensor.dim():
            return whole
        shards, first, last = self.shared
        return shards.cut(whole, first, last).clone()  # a view would keep the whole

    def joined(self, own: Tensor) -> Tensor:
        """Join the shards of a tensor of the view's size, with the leader only; other sizes as they are."""
        if self.shared is None or own.shape != self.tensor.shape:
            return own
        shards, first, last = self.shared
        return shards.joined(own, first, last)

    def slice(self, tensor: Tensor) -> Tensor:
        """Return this view's slice of a tensor shaped like `base`."""
        part = tensor if self.index is None else tensor[self.index]
        part = part if self.shape is None else part.view(self.shape)
        return part.t() if self.transposed else part


def flat_views(labelling: Labelling, variables: list[Tensor]) -> list[OptimizerView]:
    """Return this process's variables of each block, then its free parameters of each group."""
    labelled, free = labelling.labelled, labelling.free
    views = []
    for block, x in zip(labelling.blocks, variables, strict=True):
        own = [labelled.parameter(name) for name in labelling.names_in(block)]
        shared = None if labelled.shards is None else (labelled.shards, block.start, block.start + block.m)
        views.append(OptimizerView(x, own, block.group, shared=shared))
    for group in sorted(set(labelling.group_of.values())):
        if names := [name for name in free.spans if labelling.group_of[name] == group]:
            first, last = free.span_of(names)
            shared = None if free.shards is None else (free.shards, first, last)
            start, stop = (first, last) if free.shards is None else free.shards.span(first, last)
            index = None if stop - start == len(free) else slice(start, stop)
            own = [free.parameter(name) for name in names]
            views.append(OptimizerView(free.w, own, group, index, shared=shared))
    return views


def matrix_views(labelling: Labelling, variables: list[Tensor]) -> list[OptimizerView]:
    """Return a matrix (rows, rest) for every parameter of two or more dimensions, and a vector for every other one.

    Variables with several numbers a weight have one of these for each.
    """
    views: list[OptimizerView] = []
    for block, x in zip(labelling.blocks, variables, strict=True):
        for name in labelling.names_in(block):
            views += _matrices(labelling.labelled, name, x, block.start, block.group)
    for name in labelling.free.spans:
        views += _matrices(labelling.free, name, labelling.free.w, 0, labelling.group_of[name])
    return views


def _matrices(flat: FlatParameters, name: str, base: Tensor, start: int, group: int) -> Iterator[OptimizerView]:
    p, (first, last) = flat.parameter(name), flat.spans[name]
    shape, transposed = _memory_layout(name, p)
    span = slice(first - start, last - start)
    for index in [(span,)] if base.dim() == 1 else [(plane, span) for plane in range(len(base))]:
        yield OptimizerView(base, [p], group, index, shape, transposed)


def _memory_layout(name: str, p: nn.Parameter) -> tuple[tuple[int, ...] | None, bool]:
    """Return the matrix as which a parameter lies in memory, and whether its rows are the columns there."""
    if p.dim() < 2 or not p.numel():
        return None, False
    rows, columns = len(p), p.numel() // len(p)
    if rows == 1 or p.stride(0) == columns:
        return (rows, columns), False
    if columns == 1 or p.stride(0) == 1:
        return (columns, rows), True
    raise BadInput(f"{name} has strides {p.stride()}, its rows are no part of memory: make it contiguous first")
