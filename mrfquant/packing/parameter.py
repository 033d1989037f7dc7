"""A parameter whose every weight is on a level, as labels in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling.matrices import PLAIN, Matrix
from mrfquant.packing.bits import Encoding, deflated, pack, packed_size, unpack

T = TypeVar("T")
MATRICES = {
    "": PLAIN,
    "+turned": Matrix(turned=True),
    "+stacked": Matrix(stacked=True),
    "+stacked+turned": Matrix(turned=True, stacked=True),
}  # by what stands after the encoding of labels


@dataclass(frozen=True)
class PackedParameter:
    """Labels of a parameter in C order, with its rows along the first dimension.

    Attributes:
        data: uint8 (bytes,). shape: of the parameter. levels: increasing. encoding: see `mrfquant.packing.bits`.
        scale: multiplies the levels: float32 of shape (1,); or (rows,) for one per output channel; or, with a group
            size, (rows, runs) for one per run of so many weights of a channel, the last one shorter; None for 1.
        group_size: weights of a run, None where the scale has no runs.
        zero: what is added to the scaled levels, in the scale's shape; None for 0.
        matrix: how it is a matrix; in general its slices along the first dimension are the rows.
    """

    data: Tensor
    shape: tuple[int, ...]
    levels: tuple[float, ...]
    encoding: Encoding = "bits"
    scale: Tensor | None = None
    group_size: int | None = None
    zero: Tensor | None = None
    matrix: Matrix = PLAIN

    @classmethod
    def of(
        cls,
        values: Tensor,
        levels: tuple[float, ...],
        encoding: Encoding = "bits",
        scale: Tensor | None = None,
        group_size: int | None = None,
        precision: torch.dtype | None = None,
        zero: Tensor | None = None,
        matrix: Matrix = PLAIN,
    ) -> PackedParameter:
        """Pack weights; refuses those that are not exactly on their levels, as these are in `precision`."""
        shape, values = tuple(values.shape), matrix.in_rows(values.detach().cpu())
        labels = torch.full(values.shape, -1, dtype=torch.int32, device="cpu")
        scales, zeros = (_spread(of, values.shape, group_size) for of in (scale, zero))
        for label, level in enumerate(torch.tensor(levels, dtype=values.dtype, device="cpu")):
            expected = (_affine(level, scales, zeros)).to(precision or values.dtype)
            labels[(values == expected).view(values.shape)] = label
        if (off := int((labels < 0).sum())) > 0:
            raise BadInput(f"{off} of {values.numel()} weights are not on the levels {levels}")
        return cls(pack(labels, len(levels), encoding), shape, levels, encoding, scale, group_size, zero, matrix)

    def __post_init__(self) -> None:
        expected = packed_size(self.numel, len(self.levels), self.encoding)
        if self.data.dtype != torch.uint8 or self.data.shape != (expected,):
            raise BadInput(
                f"{self.numel} labels of {len(self.levels)} levels take {expected} bytes, not {len(self.data)}"
            )
        if self.scale is not None and tuple(self.scale.shape) not in self._scale_shapes():
            runs = "" if self.group_size is None else f" in runs of {self.group_size}"
            raise BadInput(f"a scale of shape {tuple(self.scale.shape)} for a parameter of shape {self.shape}{runs}")
        if self.zero is not None and (self.scale is None or self.zero.shape != self.scale.shape):
            raise BadInput(f"zero points of shape {tuple(self.zero.shape)}, expected that of the scale")

    def _scale_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes that a scale may have."""
        if self.group_size is None:
            return [(1,), self.rows[:1]]
        columns = math.prod(self.rows[1:])
        if len(self.rows) < 2 or not 0 < self.group_size < columns:
            return []  # a row is one run: it takes one scale
        return [(self.rows[0], -(-columns // self.group_size))]

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape in which labels, scales and zero points are stored: with the rows along the first dimension."""
        return self.matrix.rows(self.shape)

    @property
    def numel(self) -> int:
        """Weights."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of labels, scales and zero points."""
        return self.data.numel() + sum(4 * of.numel() for of in (self.scale, self.zero) if of is not None)

    @property
    def description(self) -> str:
        """The levels and what multiplies them, for people."""
        levels = " ".join(f"{q:g}" for q in self.levels)
        run = "" if self.group_size is None else f" of {self.group_size}"
        return levels if self.scale is None else f"{levels} x scale{run}"

    @property
    def block(self) -> tuple[Any, ...]:
        """Levels, encoding and group size, if any: parameters that share them are listed together in a file."""
        size = () if self.group_size is None else (self.group_size,)
        return (self.levels, self.encoding + _suffix(self.matrix), *size)

    @property
    def parts(self) -> dict[str, Tensor]:
        """The tensors that a file has beside the labels."""
        parts = {"scale": self.scale, "zero": self.zero}
        return {part: tensor for part, tensor in parts.items() if tensor is not None}

    def stored(self, compressed: bool) -> Tensor:
        """Return the labels as files have them: the bytes, or these deflated."""
        return deflated(self.data) if compressed else self.data

    def labels(self) -> Tensor:
        """Return the label of every weight, in the parameter's shape."""
        labels = unpack(self.data, self.numel, len(self.levels), self.encoding)
        return self.matrix.back(labels.view(self.rows), self.shape)

    def values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weights, to the bit as they were."""
        q = torch.tensor(self.levels, dtype=dtype, device="cpu")
        scales, zeros = (_spread(of, self.rows, self.group_size) for of in (self.scale, self.zero))
        values = _affine(q[self.matrix.in_rows(self.labels()).int()], scales, zeros).view(self.rows)
        return self.matrix.back(values, self.shape).contiguous()


def _suffix(matrix: Matrix) -> str:
    return next(suffix for suffix, known in MATRICES.items() if known == matrix)


def in_columns(scale: Tensor, group_size: int, columns: int) -> Tensor:
    """Return scales (rows, runs) as those of every weight: (rows, columns)."""
    return scale[:, :, None].expand(-1, -1, group_size).flatten(1)[:, :columns]


def _affine(level: Tensor, scale: Tensor | None, zero: Tensor | None) -> Tensor:
    """Compute level * scale + zero, rounded after each."""
    value = level if scale is None else level * scale
    return value if zero is None else value + zero


def _spread(scale: Tensor | None, shape: tuple[int, ...], group_size: int | None) -> Tensor | None:
    """Return a scale or zero point in a shape that broadcasts with the parameter."""
    if scale is None:
        return None
    if group_size is None:
        return scale.cpu().view(-1, *[1] * (len(shape) - 1))
    return in_columns(scale.cpu(), group_size, math.prod(shape[1:])).reshape(shape)


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several in a network."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def under_all_names(tied: Iterable[Sequence[str]], packed: Mapping[str, T]) -> dict[str, T]:
    """Return packed parameters, those that have several names in the network under each of them."""
    known = {name: packed[first] for names in tied for first in names if first in packed for name in names}
    return {**packed, **known}
