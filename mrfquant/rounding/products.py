"""Calls of linear layers, matrix products and convolutions as products of matrix rows with columns of inputs.

An output at a position (a token, a pixel) is a row of the weight matrix times a column of inputs, plus a bias. Grouped
convolutions have groups of rows, each with its own columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.labelling.matrices import PLAIN, Matrix

INPUTS_PER_WEIGHT = 64  # columns to draw for each weight of a row, over all batches, if there are as many

CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
ARGUMENTS: dict[Callable[..., Any], tuple[str, ...]] = {
    functional.linear: ("input", "weight", "bias"),
    torch.addmm: ("bias", "input", "weight"),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), ("input", "weight")),
    **dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), CONVOLUTION),
    **dict.fromkeys(
        (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d), TRANSPOSED
    ),
}


@dataclass(frozen=True)
class Form:
    """How a weight tensor is a matrix (rows, n), a row for each output."""

    transposed: bool = False  # of a transposed convolution: (inputs, outputs / groups, ...); or (..., inputs, outputs)
    groups: int = 1  # of rows, each with its own columns
    linear: bool = False  # of a linear layer, which may be one of a stack

    def matrix(self, weight: Tensor) -> Tensor:
        """Return a tensor of the weight's shape as (rows, n)."""
        if self.linear:
            return self.of_linear(weight.shape).in_rows(weight)
        if not self.transposed:
            return weight.flatten(1)
        inputs, outputs = weight.shape[:2]
        parts = weight.reshape(self.groups, inputs // self.groups, outputs, -1)
        return parts.transpose(1, 2).reshape(self.groups * outputs, -1)

    def tensor(self, matrix: Tensor, shape: torch.Size) -> Tensor:
        """Return a matrix (rows, n) in the weight's shape."""
        if self.linear:
            return self.of_linear(shape).back(matrix, shape)
        if not self.transposed:
            return matrix.reshape(shape)
        inputs, outputs = shape[:2]
        parts = matrix.reshape(self.groups, outputs, inputs // self.groups, -1)
        return parts.transpose(1, 2).reshape(shape)

    def spread(self, scale: Tensor, shape: torch.Size) -> Tensor:
        """Return scales (rows, n), or (rows, 1) for whole rows, in a shape that broadcasts with the weight."""
        if scale.shape[1] > 1:
            return self.tensor(scale, shape)
        if self.linear:
            return self.of_linear(shape).back(scale, shape)
        if not self.transposed:
            return scale.view(-1, *[1] * (len(shape) - 1))
        inputs, outputs = shape[:2]
        parts = scale.view(self.groups, 1, outputs).expand(-1, inputs // self.groups, -1)
        return parts.reshape(inputs, outputs, *[1] * (len(shape) - 2))

    def of_linear(self, shape: torch.Size) -> Matrix:
        """Return how a weight of a shape is a matrix, if it is that of a linear layer."""
        return Matrix(self.transposed, stacked=len(shape) > 2) if self.linear else PLAIN


@dataclass(frozen=True)
class Product:
    """One call of a layer."""

    form: Form
    given: Mapping[str, Any]  # arguments by name
    output: Tensor
    first: int = 0  # first row of the part of the weight that was used

    @classmethod
    def of(cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> Product:
        """Describe a call of one of the functions in ARGUMENTS."""
        given = {**dict(zip(ARGUMENTS[func], args, strict=False)), **kwargs}
        if "stride" in ARGUMENTS[func]:
            return cls(Form("output_padding" in ARGUMENTS[func], given.get("groups", 1)), given, output)
        return cls(Form(transposed=func is not functional.linear, linear=True), given, output)

    def copied(self) -> Product:
        """Return the product with copies of its input and output."""
        given = {**self.given, "input": self.given["input"].clone()}
        return replace(self, given=given, output=self.output.clone())

    @property
    def rows(self) -> int:
        """Rows of the weight matrix."""
        return self.output.shape[self.output.dim() - 1 - self.space]

    @property
    def space(self) -> int:
        """Dimensions of the kernel; 0 for a linear layer."""
        return 0 if self.form.linear else self.given["weight"].dim() - 2

    def positions(self, batches: int, generator: torch.Generator) -> Tensor:
        """Draw output pixels for second moments.

        As many as make them cost about as much as the layer's forward pass, and enough for INPUTS_PER_WEIGHT in all
        batches.
        """
        pixels = math.prod(self.output.shape[-self.space :]) if self.space else 1
        rows, n = self.rows // self.form.groups, self.form.matrix(self.given["weight"]).shape[1]
        images = self.output.numel() // (pixels * self.rows)
        enough = math.ceil(INPUTS_PER_WEIGHT * n / max(1, images * batches))
        drawn = torch.randperm(pixels, generator=generator)[: max(enough, math.ceil(pixels * rows / n))]
        return drawn.sort().values.to(self.output.device)

    def columns(self, positions: Tensor) -> Tensor:
        """Return the inputs of some output pixels of every image: (groups, columns, n)."""
        x = self.given["input"]
        if not self.space:
            return x.reshape(1, -1, x.shape[-1])
        windows = self._windows(x if x.dim() > self.space + 1 else x[None])  # (b, c, ..., kernel...)
        b, c = windows.shape[:2]
        places = torch.unravel_index(positions, windows.shape[2 : 2 + self.space])
        at: tuple[slice | Tensor, ...] = (slice(None), slice(None), *places)
        chosen = windows[at].flatten(3)  # (b, c, p, k)
        groups, p = self.form.groups, len(positions)
        return chosen.view(b, groups, c // groups, p, -1).permute(1, 0, 3, 2, 4).reshape(groups, b * p, -1)

    def at(self, outputs: Tensor, positions: Tensor) -> Tensor:
        """Return values of the output's shape at the same pixels: (columns, rows)."""
        if not self.space:
            return outputs.reshape(-1, self.rows)
        outputs = outputs if outputs.dim() > self.space + 1 else outputs[None]
        return outputs.flatten(2)[:, :, positions].transpose(1, 2).reshape(-1, self.rows)

    def _windows(self, x: Tensor) -> Tensor:
        """Return a view of the inputs of every output pixel: (b, c, ..., kernel...)."""
        kernel = self.given["weight"].shape[2:]
        stride, dilation = self._each("stride", 1), self._each("dilation", 1)
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        padding = self.given.get("padding", 0)
        pads = [0] * self.space if isinstance(padding, str) else self._each("padding", 0)
        if self.form.transposed:  # a convolution of the inputs with zeros between them, its kernel flipped
            x = _insert_zeros(x, stride)
            extra = self._each("output_padding", 0)
            sides = [(r - p, r - p + o) for r, p, o in zip(reach, pads, extra, strict=True)]
            stride = [1] * self.space
        elif padding == "same":
            sides = [(r // 2, r - r // 2) for r in reach]
        else:
            sides = [(p, p) for p in pads]
        x = functional.pad(x, [side for pair in reversed(sides) for side in pair])  # negative ones cut
        for axis in range(self.space):
            x = x.unfold(2 + axis, reach[axis] + 1, stride[axis])[..., :: dilation[axis]]
        return x.flip(tuple(range(-self.space, 0))) if self.form.transposed else x

    def _each(self, name: str, default: int) -> list[int]:
        """Return an argument for every dimension of the kernel."""
        value = self.given.get(name, default)
        values = [value] if isinstance(value, int) else list(value)
        return values * self.space if len(values) == 1 else values


def _insert_zeros(x: Tensor, stride: list[int]) -> Tensor:
    """Insert stride - 1 zeros between neighbouring pixels."""
    if max(stride) == 1:
        return x
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], stride, strict=True)]
    out = x.new_zeros(*x.shape[:2], *sizes)
    places = (slice(None), slice(None), *(slice(None, None, step) for step in stride))
    out[places] = x
    return out
