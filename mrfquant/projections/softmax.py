"""Softmax: mean-field, with the Jacobian of the paper, of its authors' code, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import Check, configurable
from mrfquant.kernels import dispatch as fused
from mrfquant.projections.base import Projection
from mrfquant.projections.line import Line

# Of the pair's product factor (1 - share t²).
NAMED = {"exact": (0.5, 1.0), "reference": (1.0, 0.5), "straight_through": (1.0, 0.0)}
Jacobian = Annotated[
    Literal["exact", "reference", "straight_through"] | float,
    Check(lambda v: v in NAMED or 0 <= v <= 1, f"one of {', '.join(NAMED)} or a number between 0 and 1"),
]


@configurable
class Softmax(Projection):
    """argmax over u of <ũ, u> + H(u) / beta (Lemma 2.1); for a pair, t = tanh(beta ã).

    Which Jacobian learning uses is a choice:

        exact             beta (diag(u) - u uᵀ)                      pair: beta (1 - t²) / 2
        reference         beta (I - u uᵀ)                            pair: beta (1 - t² / 2)
        straight_through  beta I                                     pair: beta
        a number a        beta ((1 - a) I + a d (diag(u) - u uᵀ))    pair: beta (1 - a t²)

    `exact` is the paper's formula; it vanishes where u is decided, so training freezes once beta is large.
    `reference` is what the authors' code computes; it keeps a gradient on the labels that are not chosen and gives the
    better networks, so it is the default. `straight_through` turns the method into mirror descent.
    """

    def __init__(self, jacobian: Jacobian = "reference") -> None:
        self.jacobian = jacobian
        self._front, self._a = NAMED[jacobian] if isinstance(jacobian, str) else (1.0, jacobian)

    def mean_kernel(self, beta: float, line: Line | None) -> fused.Mean:
        """What compiles `line`, or `pair` without one."""
        if line is None:
            return fused.Mean.of_pair(beta)
        return fused.Mean.of_line(line.levels, line.spacing, line.grid, beta)

    def mean_factors(self, beta: float, line: Line | None) -> tuple[float, float, float] | None:
        """(f, a, c) where the product with δ is f (1 - a (t - c)²) δ, for a pair or a line; None if it is not."""
        if line is None:
            return beta * self._front, self._a, 0.0
        if self.jacobian == "straight_through":
            return beta / line.top, 0.0, 0.0
        if self.jacobian == "reference":  # the mean is all of u that it needs
            return beta / line.top, line.top**2 / line.square, line.centre
        return None

    def mean_costs(self, costs: Tensor, parts: Sequence[int], beta: float, line: Line | None) -> fused.Costs:
        """The gradient on t of <c, u> for costs c of the labels (parts, d), of a pair or a line.

        With three even levels and κ = exp(-2 beta s), u_1 u_3 = κ² u_2² makes u_2 a function of t, and of <c, u> the
        slope (c_3 - c_1) / 2 + ((c_1 + c_3) / 2 - c_2) sinh(2 beta a) / (cosh(2 beta a) + 2 κ).
        """
        ends, values = np.cumsum(parts), costs.numpy()
        low, high = values[:, 0], values[:, -1]
        if line is None:
            return fused.Costs(ends, np.stack([(high - low) / 2, 0 * low], 1), np.zeros(2, np.float32))
        if line.grid == line.top == 2:
            curve = np.array([2 * beta * fused.LOG2E, 4 * math.exp(-2 * beta * line.spacing)], np.float32)
            return fused.Costs(ends, np.stack([(high - low) / 2, (low + high) / 2 - values[:, 1]], 1), curve)
        curve = np.array([beta * fused.LOG2E, 0], np.float32)
        return fused.Costs(ends, np.ascontiguousarray(values), curve, torch.stack([line.p, line.shift]).numpy())

    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        # The maximum goes before beta is multiplied in: beta times a large ũ may be infinite, beta times 0 is 0.
        # Powers of 2 take half the time of exp on the CPU.
        out = torch.sub(aux, aux.amax(0), out=out).mul_(beta * math.log2(math.e)).exp2_()
        return out.div_(out.sum(0))

    def pair(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        if out is not None and fused.usable(aux, out):
            fused.mean(aux, self.mean_kernel(beta, None), out)
            return out
        # tanh x = 2 sigmoid(2x) - 1, which vectorises better: a third of the time on the CPU, the same to 2e-7.
        return torch.mul(aux, 2 * beta, out=out).sigmoid_().mul_(2).sub_(1)

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        aux = u.log()
        return (aux - aux.mean(0)) / beta

    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        g = g.sub_(g.mean(0)).mul_(beta)
        if self.jacobian == "straight_through":
            return g
        expected = (u * g).sum(0)
        if self.jacobian == "reference":
            return g.addcmul_(u, expected, value=-1)
        exact = (g - expected).mul_(u)
        return exact if self.jacobian == "exact" else g.mul_(1 - self._a).add_(exact, alpha=self._a * len(u))

    def line(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        if out is not None and fused.usable(aux, out):
            fused.mean(aux, self.mean_kernel(beta, line), out)
            return out
        return super().line(aux, line, beta, out)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor) -> Tensor:
        factors = self.mean_factors(beta, None)
        assert factors is not None
        return self._mean_vjp(t, delta, *factors)

    def line_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        if (factors := self.mean_factors(beta, line)) is None:
            return super().line_vjp(t, delta, beta, aux, line)
        return self._mean_vjp(t, delta, *factors)

    def line_planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        if self.jacobian == "exact":
            return super().line_planes_vjp(u, g, beta, aux, line)
        # Of an approximate product with planes, the part along the line may point the wrong way: what it does to
        # labels between the ends is lost.
        return self.line_vjp(line.mean(u), line.slope(aux, u, g), beta, aux, line)

    def _mean_vjp(self, t: Tensor, delta: Tensor, factor: float, share: float, centre: float) -> Tensor:
        if fused.usable(t, delta):
            fused.mean_vjp(t, delta, factor, share, centre)
            return delta
        t = t - centre if centre else t
        if share:
            delta.addcmul_(delta * t, t, value=-share)
        return delta.mul_(factor)

    def weights(self, aux: Tensor, q: Tensor, beta: float, out: Tensor, w: Tensor) -> None:
        if fused.usable(aux, q, out, w):
            fused.weights(aux, q, beta, out, w)
        else:
            super().weights(aux, q, beta, out, w)

    def weights_vjp(self, u: Tensor, q: Tensor, w: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        if self.jacobian in ("exact", "reference") and fused.usable(u, q, w, g):
            fused.weights_vjp(u, q, w, g, beta, self.jacobian == "exact")
            return u
        if self.jacobian == "reference":
            return torch.addcmul(q, u, w, value=-1, out=u).mul_(g * beta)
        if self.jacobian == "exact":
            return u.mul_(q - w).mul_(g * beta)
        return super().weights_vjp(u, q, w, g, beta, aux)

    def unary_vjp(
        self, u: Tensor, q: Tensor, g: Tensor, parts: Sequence[int], costs: Tensor, beta: float, aux: Tensor
    ) -> Tensor:
        if self.jacobian in ("exact", "reference") and fused.usable(u, q, g):
            centred = costs - costs.mean(1, keepdim=True)
            fused.unary_vjp(u, q, g, parts, centred, beta, self.jacobian == "exact")
            return u
        return super().unary_vjp(u, q, g, parts, costs, beta, aux)
