"""Labels as bytes: a stream of bits, or five labels of three levels in a byte.

bits   label i takes the bits i b to (i + 1) b - 1 of the stream, b = ceil(log2 d), least significant first; bit k of
       the stream is bit k mod 8 of byte k // 8. What is left of the last byte is 0.
base3  for three levels: byte j is the sum over i < 5 of label 5 j + i times 3^i. What is left counts as 0.
"""

import zlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mrfquant.errors import BadInput

Encoding = Literal["bits", "base3"]
MOST = 2**16  # levels
TRITS = 5  # in a byte: 3^5 = 243
MOST_ROOM, MOST_FACTOR = 2**26, 100  # bytes that compressed labels may take, and those for each byte of their file


def label_bits(d: int) -> int:
    """Return the bits of a label: ceil(log2 d)."""
    return (d - 1).bit_length()


def packed_size(count: int, d: int, encoding: Encoding) -> int:
    """Return the bytes that `count` labels of d levels take."""
    return -(-count // TRITS) if encoding == "base3" else -(-count * label_bits(d) // 8)


def pack(labels: Tensor, d: int, encoding: Encoding = "bits") -> Tensor:
    """Pack labels from 0 to d - 1 of any shape, in C order, as uint8 (bytes,)."""
    if not 1 <= d <= MOST:
        raise BadInput(f"{d} levels, expected 1 to {MOST}")
    flat = labels.reshape(-1).cpu().numpy()
    if len(flat) and not 0 <= flat.min() <= flat.max() < d:
        raise BadInput(f"labels from {flat.min()} to {flat.max()}, expected 0 to {d - 1}")
    if encoding == "base3":
        if d != 3:
            raise BadInput(f"the encoding base3 is for 3 levels, these are {d}")
        rows = np.zeros((packed_size(len(flat), d, encoding), TRITS), np.uint8)
        rows.reshape(-1)[: len(flat)] = flat
        return torch.from_numpy(rows @ np.array([3**i for i in range(TRITS)], np.uint8))
    b = label_bits(d)
    bits = (flat[:, None].astype(np.uint16) >> np.arange(b, dtype=np.uint16)).astype(np.uint8) & 1
    return torch.from_numpy(np.packbits(bits, bitorder="little"))


def unpack(packed: Tensor, count: int, d: int, encoding: Encoding = "bits") -> Tensor:
    """Return the first `count` labels, uint8 (count,) (int32 above 256 levels); the inverse of `pack`."""
    size = packed_size(count, d, encoding)
    if packed.dtype != torch.uint8 or packed.shape != (size,):
        raise BadInput(
            f"{count} labels of {d} levels take {size} bytes, given are {tuple(packed.shape)} {packed.dtype}"
        )
    data = packed.cpu().numpy()
    if encoding == "base3":
        trits = data[:, None] // np.array([3**i for i in range(TRITS)], np.uint8) % 3
        labels = trits.reshape(-1)[:count]
    else:
        b = label_bits(d)
        bits = np.unpackbits(data, count=count * b, bitorder="little").reshape(count, b)
        kind = np.uint8 if b <= 8 else np.int32
        labels = (bits.astype(kind) << np.arange(b, dtype=kind)).sum(1, dtype=kind)
    if (len(labels) and labels.max() >= d) or (encoding == "base3" and data.max(initial=0) >= 3**TRITS):
        raise BadInput(f"a packed label is {labels.max()}, expected 0 to {d - 1}: the data is damaged")
    return torch.from_numpy(np.ascontiguousarray(labels))


def deflated(data: Tensor) -> Tensor:
    """Compress bytes (n,) by zlib: where labels have unlike shares, they take less than their bits."""
    return torch.frombuffer(bytearray(zlib.compress(data.numpy().tobytes(), 9)), dtype=torch.uint8)


def inflated(data: Tensor, size: int, room: int = MOST_ROOM) -> Tensor:
    """Return the `size` bytes that were deflated, at most `room`; no more memory is taken than for these, twice."""
    if size > room:
        raise BadInput(f"compressed labels would take {size:,} bytes, {room:,} at most are read: pack it uncompressed")
    if data.dtype != torch.uint8 or data.dim() != 1:
        raise BadInput(f"compressed labels are {tuple(data.shape)} {data.dtype}, expected a row of bytes")
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data.numpy().tobytes(), size + 1)
    except zlib.error:
        raise BadInput("compressed labels cannot be read: the data is damaged") from None
    if len(found) != size or not reader.eof or reader.unused_data:
        raise BadInput(f"compressed labels are not the {size} bytes that they should be: the data is damaged")
    return torch.frombuffer(bytearray(found), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
