"""Weights on levels as small integers times a scale: what integer kernels multiply, without rounding.

Two, three or four evenly spaced levels are multiples of one step, and so are many others. Nothing is lost: the integers
times step and scale are the weights, to float32 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mrfquant.packing.bits import Encoding
from mrfquant.packing.parameter import PackedParameter

LARGEST = 64  # where AVX2 adds two products with 8-bit activations in 16 bits, larger weights would overflow


def integer_levels(levels: tuple[float, ...], largest: int = LARGEST) -> tuple[np.ndarray, float] | None:
    """Levels as integers up to `largest` times a step, as small as can be; None where they are no such multiples."""
    q = np.asarray(levels)
    top = float(np.abs(q).max())
    for n in range(1, largest + 1):
        scaled = q * (n / top) if top else q
        if np.abs(scaled - scaled.round()).max() < 1e-6:
            return scaled.round().astype(np.int8), top / n if top else 1.0
    return None


@dataclass
class IntegerWeight:
    """Integers (rows, ...) times a scale for each row.

    Attributes:
        integers: int8, in the weight's shape.
        scale: float32 (rows,); `fold` may make it negative until `settle`.
        levels: the integers that may occur.
        encoding: of the parameter that it comes from.
    """

    integers: np.ndarray
    scale: np.ndarray
    levels: tuple[int, ...]
    encoding: Encoding

    @classmethod
    def of(cls, parameter: PackedParameter) -> IntegerWeight | None:
        """None where levels are no multiples of a step, scales differ within a row, or there are zero points."""
        found = integer_levels(parameter.levels)
        if found is None or parameter.group_size is not None or parameter.zero is not None or len(parameter.shape) < 2:
            return None
        levels, step = found
        scale = np.ones(1, np.float32) if parameter.scale is None else parameter.scale.cpu().numpy()
        rows = np.broadcast_to(np.float32(step) * scale, parameter.shape[:1])
        return cls(levels[parameter.labels().numpy()], rows.copy(), tuple(levels.tolist()), parameter.encoding)

    @property
    def values(self) -> np.ndarray:
        """The weights in float32."""
        return self.integers * self._column(self.scale)

    def fold(self, factor: np.ndarray) -> None:
        """Multiply each row by a number."""
        self.scale = self.scale * factor

    def settle(self) -> None:
        """Let the integers have the signs: scales of quantized tensors are positive."""
        sign = np.sign(self.scale).astype(np.int8)
        if (sign < 1).any():
            self.integers = self.integers * self._column(sign)
            self.levels = tuple(sorted({int(s) * q for q in self.levels for s in {1, *sign.tolist()}}))
            self.scale = np.where(sign == 0, 1, np.abs(self.scale)).astype(np.float32)

    def packed(self) -> PackedParameter:
        """The integers as a parameter on levels."""
        encoding: Encoding = "base3" if self.encoding == "base3" and len(self.levels) == 3 else "bits"
        return PackedParameter.of(torch.from_numpy(self.integers).float(), tuple(map(float, self.levels)), encoding)

    def _column(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, *[1] * (self.integers.ndim - 1))
