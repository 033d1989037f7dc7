"""The tensors that an optimizer drives for a solver: whole vectors, or a matrix for each layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling import FlatParameters, Labelling


@dataclass
class Driven:
    """A tensor that an optimizer moves: one of a solver's, or a view of a part of it.

    Attributes:
        base: the solver's tensor.
        parameters: those of the network that it stands for.
        group: the number of their group.
        index: of the part within the base; None if it is all of it.
        shape: of the part; None as it is.
        transposed: whether the part is the transpose of what lies in memory in this shape.
    """

    base: Tensor
    parameters: list[nn.Parameter]
    group: int
    index: Any = None
    shape: tuple[int, ...] | None = None
    transposed: bool = False

    def __post_init__(self) -> None:
        self.tensor = self.of(self.base)

    def of(self, tensor: Tensor) -> Tensor:
        """The same part of a tensor that is like the base."""
        part = tensor if self.index is None else tensor[self.index]
        part = part if self.shape is None else part.view(self.shape)
        return part.t() if self.transposed else part


def in_one_piece(labelling: Labelling, variables: list[Tensor]) -> list[Driven]:
    """The variables of each block, then the free parameters of each group."""
    driven = [
        Driven(x, [labelling.labelled.parameter(n) for n in labelling.names_in(block)], block.group)
        for block, x in zip(labelling.blocks, variables, strict=True)
    ]
    free = labelling.free
    for group in range(len(labelling.settings)):
        if names := [name for name in free.spans if labelling.group_of[name] == group]:
            first, last = free.span_of(names)
            index = None if last - first == len(free) else slice(first, last)
            driven.append(Driven(free.w, [free.parameter(name) for name in names], group, index))
    return driven


def by_shape(labelling: Labelling, variables: list[Tensor]) -> list[Driven]:
    """A matrix (rows, rest) for every parameter of two or more dimensions, a vector for every other one; one for each
    label where the variables have planes."""
    driven: list[Driven] = []
    for block, x in zip(labelling.blocks, variables, strict=True):
        for name in labelling.names_in(block):
            driven += _shaped(labelling.labelled, name, x, block.start, block.group)
    for name in labelling.free.spans:
        driven += _shaped(labelling.free, name, labelling.free.w, 0, labelling.group_of[name])
    return driven


def _shaped(flat: FlatParameters, name: str, base: Tensor, start: int, group: int) -> Iterator[Driven]:
    p, (first, last) = flat.parameter(name), flat.spans[name]
    shape, transposed = _in_memory(name, p)
    span = slice(first - start, last - start)
    for index in [(span,)] if base.dim() == 1 else [(plane, span) for plane in range(len(base))]:
        yield Driven(base, [p], group, index, shape, transposed)


def _in_memory(name: str, p: nn.Parameter) -> tuple[tuple[int, ...] | None, bool]:
    """The matrix as which a parameter lies in memory, and whether its rows are the columns there."""
    if p.dim() < 2 or not p.numel():
        return None, False
    rows, columns = len(p), p.numel() // len(p)
    if rows == 1 or p.stride(0) == columns:
        return (rows, columns), False
    if columns == 1 or p.stride(0) == 1:
        return (columns, rows), True
    raise BadInput(f"{name} has strides {p.stride()}, its rows are no part of memory: make it contiguous first")
