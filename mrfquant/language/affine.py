"""Matrices in groups of few bits with a scale and a bias each, as MLX keeps them.

A row of n labels of b bits is a stream of bits, the lowest of each label first, in n b / 32 words of 32 bits; a weight
is its group's scale * label + bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

TILE_WEIGHTS = 2**20  # weights that are float at a time


def pack_words(labels: Tensor, bits: int) -> Tensor:
    """Return labels uint8 (rows, n), n a multiple of 32, as words uint32 (rows, n bits / 32)."""
    eight = labels.view(len(labels), -1, 8).long() << torch.arange(0, 8 * bits, bits)  # bytes that hold whole labels
    data = eight.sum(2, keepdim=True) >> torch.arange(0, 8 * bits, 8) & 255
    return data.to(torch.uint8).flatten(1).view(torch.uint32)


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """Return the labels int32 (rows, n) of words."""
    data = words.view(torch.uint8).view(len(words), -1, bits).int()
    places = torch.arange(bits, dtype=torch.int32, device=words.device)
    eight = (data << 8 * places).sum(2, keepdim=True, dtype=torch.int32)
    shifts = torch.arange(0, 8 * bits, bits, dtype=torch.int32, device=words.device)
    return (eight >> shifts & 2**bits - 1).flatten(1)


class AffineLinear(nn.Module):
    """nn.Linear with a packed weight, which is made float some rows at a time when it is used."""

    weight: Tensor
    scales: Tensor
    biases: Tensor
    bias: Tensor | None

    def __init__(self, inputs: int, outputs: int, bias: bool, bits: int, group_size: int) -> None:
        super().__init__()
        self.bits, self.in_features, self.out_features = bits, inputs, outputs
        self.register_buffer("weight", torch.zeros(outputs, inputs * bits // 32, dtype=torch.uint32))
        self.register_buffer("scales", torch.zeros(outputs, inputs // group_size))
        self.register_buffer("biases", torch.zeros(outputs, inputs // group_size))
        self.register_buffer("bias", torch.zeros(outputs) if bias else None)

    def values(self, rows: slice = slice(None)) -> Tensor:
        """Return the float weights (rows, inputs)."""
        labels = unpack_words(self.weight[rows], self.bits)
        grouped = labels.view(*self.scales[rows].shape, -1).to(self.scales.dtype)
        return (grouped * self.scales[rows, :, None] + self.biases[rows, :, None]).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., inputs) to (..., outputs)."""
        step = max(1, TILE_WEIGHTS // self.in_features)
        tiles = [functional.linear(x, self.values(slice(a, a + step))) for a in range(0, self.out_features, step)]
        out = torch.cat(tiles, -1)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={self.bits}"
