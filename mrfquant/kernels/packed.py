"""Rows of labels as bytes, and the product of a few vectors with them.

A byte holds the labels of neighbouring columns as digits in base d, the first column least: 8 labels of 2 levels, 5 of
3, 4 of 4, 3 of up to 6, 2 of up to 16 and 1 of up to 256. Every row starts a new byte. For d = 2, 4 and 16 that is the
encoding "bits" of `mrfquant.packing.bits`, for 3 it is "base3".

The product never builds float weights. A byte can add one of at most 256 sums of its columns' inputs times their levels
to a result; these are in a table, so 8 weights of two levels take one lookup. It is compiled by numba
(pip install 'mrfquant[fast]'); without numba `compiled` returns None, and the layers unpack their weights and multiply
by torch.
"""

import functools
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.errors import BadInput
from mrfquant.kernels import dispatch

WORD = 8  # bytes of a row that the product reads at once
ROWS_PER_THREAD = 256


def labels_per_byte(d: int) -> int:
    """Return how many labels of d levels fit in a byte."""
    if not 1 <= d <= 256:
        raise BadInput(f"layers compute from 1 to 256 levels, these are {d}")
    return next(n for n in range(8, 0, -1) if d**n <= 256)


def pack_rows(labels: Tensor, d: int, word: int | None = None) -> Tensor:
    """Pack labels (rows, columns) as uint8 (words, rows, word); by default a row is one word."""
    n = labels_per_byte(d)
    word = word or max(1, -(-labels.shape[1] // n))
    labels = functional.pad(labels.to(torch.uint8), (0, -labels.shape[1] % (n * word)))
    digits = labels.view(len(labels), -1, n).unbind(2)
    packed = sum(digit * d**i for i, digit in enumerate(digits))
    return packed.view(len(labels), -1, word).transpose(0, 1).contiguous()


def unpack_rows(packed: Tensor, columns: int, values: Tensor) -> Tensor:
    """Return the weights (rows, columns) of packed rows (words, rows, word), by the table of `byte_values`."""
    weights = values.index_select(0, packed.transpose(0, 1).flatten().int())
    return weights.view(packed.shape[1], -1)[:, :columns]


def byte_values(levels: Tensor) -> Tensor:
    """Return the weights of every byte, (256, labels per byte)."""
    d, n = len(levels), labels_per_byte(len(levels))
    powers = d ** torch.arange(n, device=levels.device)
    return levels[torch.arange(256, device=levels.device)[:, None] // powers % d]


def product(x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
    """Return x Wᵀ (b, rows) of x (b, columns) and packed rows (words, rows, 8); float32 on the CPU, by `compiled`."""
    from mrfquant.kernels.jit import parallel_ranges

    n, rows = labels_per_byte(len(levels)), packed.shape[1]
    inputs = functional.pad(x.detach(), (0, len(packed) * WORD * n - x.shape[1])).numpy()
    words = packed.numpy().view(np.uint64)[..., 0]
    out = torch.zeros(len(x), rows, dtype=torch.float32, device="cpu")
    add = compiled()
    assert add is not None
    kernel = functools.partial(add, inputs, words, levels.detach().numpy(), n, out.numpy())
    parallel_ranges(kernel, rows, ROWS_PER_THREAD)
    return out


@functools.cache
def compiled() -> Callable[..., None] | None:
    """Return `add_products` compiled by numba, None where it is not installed."""
    module = dispatch.loops("jit")
    return None if module is None or sys.byteorder != "little" else module.jit()(add_products)


def add_products(
    x: np.ndarray, words: np.ndarray, levels: np.ndarray, n: int, out: np.ndarray, start: int, stop: int
) -> None:
    """Add x Wᵀ to out (b, rows) [:, start:stop], for x (b, columns).

    W is given as words (words, rows) of eight bytes of a row each, levels (d,) and n labels per byte.
    """
    d, byte = len(levels), np.uint64(255)
    tables = np.zeros((8, 256), np.float32)
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    t4, t5, t6, t7 = tables[4], tables[5], tables[6], tables[7]
    for i in range(len(words)):
        word = words[i]
        for b in range(len(x)):
            for j in range(8):
                table, size = tables[j], 1
                table[0] = 0
                for k in range(n):  # the sums of k digits become those of k + 1, the last digit's level first
                    value = x[b, (8 * i + j) * n + k]
                    for label in range(d - 1, -1, -1):
                        added = value * levels[label]
                        for r in range(size):
                            table[label * size + r] = table[r] + added
                    size *= d
            y = out[b]
            for row in range(start, stop):
                w = word[row]
                y[row] += (
                    (t0[w & byte] + t1[(w >> np.uint64(8)) & byte])
                    + (t2[(w >> np.uint64(16)) & byte] + t3[(w >> np.uint64(24)) & byte])
                ) + (
                    (t4[(w >> np.uint64(32)) & byte] + t5[(w >> np.uint64(40)) & byte])
                    + (t6[(w >> np.uint64(48)) & byte] + t7[w >> np.uint64(56)])
                )
