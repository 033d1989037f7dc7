"""Labels and scales as the blocks of bytes that GGUF files have for each type, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]


class BlockType(NamedTuple):
    """How a group of weights is stored.

    Attributes:
        number: what the file calls the type.
        group: weights in a block.
        size: bytes of a block.
        scale: where the float16 scale begins in it.
        labels: where the labels begin.
        pack: packs labels (blocks, group) into bytes.
        unpack: the reverse.
        file_type: what the file calls itself if most tensors have the type.
    """

    number: int
    group: int
    size: int
    scale: int
    labels: int
    pack: Callable[[Codes], Codes]
    unpack: Callable[[Codes], Codes]
    file_type: int

    def encode(self, labels: Codes, scale: NDArray[np.float16]) -> Codes:
        """Return the bytes (rows, ...) of labels (rows, n) and scales (rows, n / group)."""
        blocks = np.empty((scale.size, self.size), np.uint8)
        blocks[:, self.scale : self.scale + 2] = np.ascontiguousarray(scale, "<f2").reshape(-1, 1).view(np.uint8)
        packed = self.pack(labels.reshape(-1, self.group))
        blocks[:, self.labels : self.labels + packed.shape[1]] = packed
        return blocks.reshape(len(labels), -1)

    def decode(self, data: Codes) -> tuple[Codes, NDArray[np.float16]]:
        """Return labels (rows, n) and scales (rows, n / group) of bytes (rows, ...)."""
        blocks = data.reshape(-1, self.size)
        scale = np.ascontiguousarray(blocks[:, self.scale : self.scale + 2]).view("<f2")
        ends = self.labels + (self.size - 2)
        labels = self.unpack(np.ascontiguousarray(blocks[:, self.labels : ends]))
        return labels.reshape(len(data), -1), scale.reshape(len(data), -1)


def _pack_neighbours(bits: int) -> tuple[Callable[[Codes], Codes], Callable[[Codes], Codes]]:
    """Neighbouring labels in a byte, the first in its lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)

    def pack(labels: Codes) -> Codes:
        return np.bitwise_or.reduce(labels.reshape(len(labels), -1, len(shifts)) << shifts, axis=2)

    def unpack(data: Codes) -> Codes:
        return (data[:, :, None] >> shifts & (2**bits - 1)).reshape(len(data), -1)

    return pack, unpack


def _pack_stripes(bits: int, stripe: int) -> tuple[Callable[[Codes], Codes], Callable[[Codes], Codes]]:
    """Labels that lie `stripe` apart in a byte, the first in its lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)

    def pack(labels: Codes) -> Codes:
        parts = labels.reshape(len(labels), -1, len(shifts), stripe) << shifts[:, None]
        return np.bitwise_or.reduce(parts, axis=2).reshape(len(labels), -1)

    def unpack(data: Codes) -> Codes:
        parts = data.reshape(len(data), -1, 1, stripe) >> shifts[:, None] & (2**bits - 1)
        return parts.reshape(len(data), -1)

    return pack, unpack


BLOCKS = {
    "q2_0": BlockType(42, 64, 18, 0, 2, *_pack_neighbours(2), 41),
    "q1_0": BlockType(41, 128, 18, 0, 2, *_pack_neighbours(1), 40),
    "tq2_0": BlockType(35, 256, 66, 64, 0, *_pack_stripes(2, 32), 37),
    "q4_0": BlockType(2, 32, 18, 0, 2, *_pack_stripes(4, 16), 2),
}
