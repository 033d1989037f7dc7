"""Mixed inputs: a basis in which the weights of a layer are alike in size and the curvature is even.

A level set with a scale a row serves weights of one size. Where some inputs are large or their weights are, mixing them
helps: in the basis y = K S diag(c) x, S random signs and K symmetric and orthogonal, the weights of a row are sums of
all of them, close to normal, and each input matters as much as any other. K is a Hadamard matrix, times a Hartley
matrix for the odd factor of n, so that it takes n log n operations. Labels belong to the mixed weights; the network
computes with weights in the old basis, which are made when a file is loaded.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mrfquant.kernels import dispatch

STEPS = 8  # steps in which a column scale doubles
SIZE_POWER, CURVATURE_POWER = 0.75, -0.125  # of column scales: size of the weights, curvature; see docs/trellis.md
SIGNS = (1103515245, 12345, 2**31)  # a linear congruence that draws the signs


@dataclass(frozen=True)
class Mixing:
    """A basis of n inputs.

    Attributes:
        exponents: int8 (n,) the scale c of each input as a power of 2^(1/8), or (1,) that of all.
    """

    exponents: Tensor

    @classmethod
    def fitted(cls, w: Tensor, a: Tensor, each: bool = True) -> Mixing:
        """Choose scales for weights (n, rows) and second moments (n, n) of their inputs, one for each input or all."""
        size, curvature = w.square().mean(1), a.diagonal()
        size = size.clamp(min=max(1e-12 * size.max().item(), torch.finfo(size.dtype).tiny))
        exponents = SIZE_POWER / 2 * size.log2() + CURVATURE_POWER * curvature.log2()
        exponents = exponents if each else torch.zeros_like(exponents[:1])
        exponents += (w * 2.0 ** -exponents[:, None]).square().mean().log2() / 2  # mixed weights are of size 1
        return cls((STEPS * exponents).round().clamp(-128, 127).to(torch.int8))

    def factor(self, n: int) -> Tensor:
        """Return the scale of each of n inputs with its sign: float64 (n,)."""
        return 2.0 ** (self.exponents.double() / STEPS) * signs(n).to(self.exponents.device)

    def weights(self, w: Tensor) -> Tensor:
        """Return weights (n, rows) in the mixed basis."""
        return mixed(w / self.factor(len(w))[:, None].to(w))

    def moments(self, a: Tensor) -> Tensor:
        """Return second moments (n, n) of inputs in the mixed basis."""
        factor = self.factor(len(a)).to(a)
        half = mixed(a * factor[:, None] * factor)
        moments = mixed(half.T.contiguous())
        return (moments + moments.T) / 2

    def unmixed(self, w: Tensor) -> Tensor:
        """Return weights (n, rows) of the mixed basis in the old one, (rows, n): the same to the bit on any machine."""
        factor = self.factor(len(w)).to(w)
        if w.dtype != torch.float32 or w.device.type != "cpu" or (loops := dispatch.loops("mixing")) is None:
            return (mixed(w) * factor[:, None]).T.contiguous()
        (n, rows), odd = w.shape, odd_factor(len(w))
        out, given = torch.empty(rows, n), (hartley(odd).float(), math.sqrt(odd / n), factor)
        dispatch.run("mixing.unmix", w.contiguous(), *given, out, size=rows, smallest=loops.LANES)
        return out


@functools.cache
def signs(n: int) -> Tensor:
    """Return n signs, random and always the same: float64 (n,)."""
    multiplier, increment, modulus = SIGNS
    state, drawn = n, []
    for _ in range(n):
        state = (multiplier * state + increment) % modulus
        drawn.append(1.0 if state & 2**16 else -1.0)
    return torch.tensor(drawn, dtype=torch.float64)


def mixed(x: Tensor) -> Tensor:
    """Return K x for x (n, ...), K orthogonal, symmetric and its own inverse. The order of operations is fixed."""
    n = len(x)
    odd = odd_factor(n)
    y = x.reshape(n // odd, odd, -1)
    if odd > 1:
        y = torch.stack([_combined(row, y) for row in hartley(odd).to(y)], 1)
    stride = 1
    while stride < n // odd:
        y = y.view(-1, 2, stride, y[0].numel())
        y = torch.stack([y[:, 0] + y[:, 1], y[:, 0] - y[:, 1]], 1).view(n // odd, odd, -1)
        stride *= 2
    return (y * math.sqrt(odd / n)).reshape(x.shape)


def odd_factor(n: int) -> int:
    """Return the largest odd number that divides n."""
    return n // (n & -n)


@functools.cache
def hartley(n: int) -> Tensor:
    """Return the matrix (cos + sin)(2 pi i j / n) / sqrt(n), orthogonal and symmetric: float64 (n, n)."""
    angles = [2 * math.pi * k / n for k in range(n)]
    values = torch.tensor([(math.cos(angle) + math.sin(angle)) / math.sqrt(n) for angle in angles], dtype=torch.float64)
    number = torch.arange(n)
    return values[number[:, None] * number % n]


def _combined(row: Tensor, y: Tensor) -> Tensor:
    """Return the sum over j of row_j y[:, j], in this order."""
    total = y[:, 0] * row[0]
    for j in range(1, len(row)):
        total = total + y[:, j] * row[j]
    return total
