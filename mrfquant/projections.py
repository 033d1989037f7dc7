"""Maps from R^d onto the simplex, one variable at a time, with their vector-Jacobian products in closed form.

A map P takes auxiliary variables ũ and an inverse temperature beta to u = P(beta ũ). The variables come in one of three
forms:

planes  ũ and u of shape (d, m): plane λ holds label λ of every variable, so that neighbours in memory are
        neighbouring variables and every operation runs along them.
pair    for d = 2, ã and t of shape (m,), where ũ = (-ã, ã) and u = ((1 - t) / 2, (1 + t) / 2). What the two planes
        have in common does not change u, so half of the numbers and of the work suffice.
line    for ordered labels, a and t of shape (m,): ũ is a point of a line in R^d (see `Line`), and t is the mean of the
        levels under u, from -1 for the lowest to 1 for the highest. For two labels it is the pair form.

A gradient with respect to u has the same form: planes g (d, m), or for a pair the half difference δ = (g_2 - g_1) / 2;
on the line δ is the gradient with respect to t.
A constant added to all labels of a variable does not change a problem on the simplex, so g is centred over the labels
before it meets a Jacobian; for the true Jacobians that makes no difference, for the approximate ones it makes both
forms agree: a step along the pair's product moves ã as a step along the planes' product moves (ũ_2 - ũ_1) / 2.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import Check, configurable
from mrfquant.kernels import dispatch as fused

SEARCH = 300  # steps towards auxiliary variables that give a wanted u
BISECTIONS, START_REACH = 50, 10.0  # likewise on a line, and how far beyond its levels they lie, in units of 1 / beta
FADED = 1e-30  # probability that no sum of them notices
PART = 2**18  # variables of a line whose planes are made at once: they need memory for a moment only
# Of the pair's product factor (1 - share t²).
NAMED = {"exact": (0.5, 1.0), "reference": (1.0, 0.5), "straight_through": (1.0, 0.0)}
Jacobian = Annotated[
    Literal["exact", "reference", "straight_through"] | float,
    Check(lambda v: v in NAMED or 0 <= v <= 1, f"one of {', '.join(NAMED)} or a number between 0 and 1"),
]


class Line:
    """The line ũ_λ = a p_λ - s p_λ² / 2 through R^d, for levels p from -(d - 1) to d - 1, 2 apart on average.

    softmax takes it to u ∝ exp(-beta s (a / s - p)² / 2), the normal distribution around a / s on the levels: an
    exponential family whose largest u is that of the level nearest to a / s. For two levels, p = (-1, 1), the square
    plays no role and a is the pair form's ã, whatever s is.

    A gradient v on ũ moves a by what comes closest to moving ũ: <p, v> / <p, p>, p less its mean. A gradient v on u is
    one on t, since on the line a function of u is one of t: p_d Cov(p, v) / Var(p) under u, the slope of v over p.

    Args:
        levels: (d,) increasing, in any unit.
        spacing: s, half the distance in a between neighbouring levels.
    """

    def __init__(self, levels: Tensor, spacing: float) -> None:
        low, high = levels[0], levels[-1]
        self.top = len(levels) - 1
        self.p = (levels - (low + high) / 2) * (2 * self.top / (high - low))
        self.spacing = spacing
        self.shift = -spacing / 2 * self.p.square()
        self.midpoints = spacing * (self.p[1:] + self.p[:-1]) / 2
        self.centred = self.p - self.p.mean()
        self.centre = self.p.mean().item() / self.top  # of t
        self.square = self.centred.square().sum().item()
        self.levels = tuple(self.p.tolist())
        self.grid = _grid(self.levels)

    def planes(self, a: Tensor) -> Tensor:
        """ũ (d, m) of a (m,)."""
        return torch.addcmul(self.shift[:, None], self.p[:, None], a)

    def pulled(self, v: Tensor) -> Tensor:
        """The gradient with respect to a (m,) of one with respect to ũ (d, m)."""
        return (self.centred @ v).div_(self.square)

    def slope(self, a: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """The gradient with respect to t (m,) of what has the gradient v (d, m) with respect to the u (d, m) of a (m,).

        Where u is decided, it is the slope from its label to the one that comes next.
        """
        likeliest = self.planes(a).topk(2, 0).indices
        first, second = likeliest[:1], likeliest[1:]
        # From the likeliest label, so that nothing is lost where the others have next to nothing of u.
        p, v = self.p[:, None] - self.p[first], v - v.gather(0, first)
        u = u.scatter_add(0, second, torch.full_like(u[:1], FADED))
        up, mean = u * p, (u * p).sum(0)
        covariance, variance = (up * v).sum(0) - mean * (u * v).sum(0), (up * p).sum(0) - mean * mean
        return covariance.div_(variance).mul_(self.top)

    def mean(self, u: Tensor) -> Tensor:
        """t (m,) of u (d, m)."""
        return (self.p @ u).div_(self.top)

    def labels(self, a: Tensor) -> Tensor:
        """The label of the largest ũ, the first of equals: int32 (m,)."""
        return torch.bucketize(a, self.midpoints, out_int32=True)


class Projection(ABC):
    """u = P(beta ũ) in all forms, and the products of gradients with its Jacobian.

    A subclass writes `planes` and `planes_vjp`; the rest follows from them, and may be overridden where there is a
    faster way. `out` and the gradients given may be overwritten; u, t and the auxiliary variables are only read,
    except by `weights_vjp`, which may build its result in u. `out` may be the auxiliary variables themselves.
    """

    @abstractmethod
    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        """u (d, m) of ũ (d, m)."""

    @abstractmethod
    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        """The gradient with respect to ũ (d, m) of what has the gradient g (d, m) with respect to u."""

    def pair(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        """t (m,) of ã (m,)."""
        first, second = self.planes(torch.stack([-aux, aux]), beta)
        return torch.sub(second, first, out=out)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor) -> Tensor:
        """The half difference of the gradient with respect to ũ, (m,), of what has the half difference δ (m,)."""
        # A t that was read off rounded weights may miss the ends of its range, where u has labels of probability 0.
        t = torch.where(t.abs() > 1 - 16 * torch.finfo(t.dtype).eps, t.sign(), t)
        u = torch.stack([1 - t, 1 + t]).div_(2)
        first, second = self.planes_vjp(u, torch.stack([-delta, delta]), beta, torch.stack([-aux, aux]))
        return torch.sub(second, first).div_(2)

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        """Auxiliary variables ũ (d, m) that are mapped to u (d, m), all of whose labels have some probability.

        They are searched for unless a subclass knows them: a label that gets less than its u is raised, by steps that
        are halved for a variable that they take too far.
        """
        aux, step, before = u / beta, torch.full_like(u[0], 1 / beta), torch.full_like(u[0], math.inf)
        for _ in range(SEARCH):
            missing = u - self.planes(aux, beta)
            error = missing.abs().amax(0)
            step, before = torch.where(error > before, step / 2, step), error
            aux.addcmul_(step, missing)
        return aux

    def pair_start(self, t: Tensor, beta: float) -> Tensor:
        """ã (m,) that is mapped to t (m,), strictly between -1 and 1."""
        first, second = self.planes_start(torch.stack([1 - t, 1 + t]).div_(2), beta)
        return (second - first) / 2

    def line(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        """t (m,) of a (m,), the points of a line."""
        parts = [line.mean(self.planes(line.planes(part), beta)) for part in aux.split(PART)]
        return torch.cat(parts, out=out)

    def line_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        """The gradient with respect to a (m,), in the sense of `Line`, of what has the gradient δ (m,) with respect to
        t (m,)."""
        for place, part in zip(delta.split(PART), aux.split(PART), strict=True):
            planes = line.planes(part)
            g = (line.centred / line.top)[:, None] * place
            place.copy_(line.pulled(self.planes_vjp(self.planes(planes, beta), g, beta, planes)))
        return delta

    def line_planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        """The gradient with respect to a (m,) of what has the gradient g (d, m) with respect to the u (d, m) of a."""
        return line.pulled(self.planes_vjp(u, g, beta, line.planes(aux)))

    def line_start(self, t: Tensor, line: Line, beta: float) -> Tensor:
        """a (m,) that is mapped to t (m,), strictly between -1 and 1: by bisection, since t grows with a."""
        reach = line.spacing * line.top + START_REACH / beta
        low, high = torch.full_like(t, -reach), torch.full_like(t, reach)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.line(middle, line, beta) < t
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def weights(self, aux: Tensor, q: Tensor, beta: float, out: Tensor, w: Tensor) -> None:
        """u (d, m) of ũ (d, m) into `out`, and the expected weights q u (m,) into w; q: (d,) levels."""
        torch.mv(self.planes(aux, beta, out).t(), q, out=w)

    def weights_vjp(self, u: Tensor, q: Tensor, w: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        """`planes_vjp` of the gradient q gᵀ that a function of the weights w = q u has; a subclass may save passes.

        Args:
            u: (d, m) of ũ.
            q: (d, 1) levels less their mean.
            w: (m,) expected weights q u.
            g: (m,) gradient with respect to w.
            beta: the inverse temperature.
            aux: ũ (d, m).
        """
        return self.planes_vjp(u, q * g, beta, aux)

    def unary_vjp(
        self, u: Tensor, q: Tensor, g: Tensor, parts: Sequence[int], costs: Tensor, beta: float, aux: Tensor
    ) -> Tensor:
        """Likewise of the gradient q gᵀ + c for costs c (parts, d) of the labels, alike for so many variables each."""
        sizes = torch.tensor(parts, device=g.device)
        each = costs.T.repeat_interleave(sizes, 1, output_size=len(g))
        return self.planes_vjp(u, (q * g).add_(each), beta, aux)


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


@configurable
class Sparsemax(Projection):
    """The Euclidean projection of beta ũ onto the simplex (Martins and Astudillo, 2016)."""

    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(aux) if out is None else out
        if fused.usable(aux, out):
            fused.sparsemax(aux, beta, out)
            return out
        z = torch.sub(aux, aux.amax(0), out=out).mul_(beta)
        # The threshold is the largest of (sum of the k largest - 1) / k over k: the right k attains it, the others
        # stay below, since dropping the negative terms of a sum of z - threshold can only make it larger.
        total, *others = _descending(z)
        threshold = total - 1
        for k, plane in enumerate(others, start=2):
            total = total + plane
            threshold = torch.maximum(threshold, (total - 1) / k)
        return z.sub_(threshold).clamp_(min=0)

    def pair(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        return torch.mul(aux, 2 * beta, out=out).clamp_(-1, 1)

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        return u / beta  # it leaves points of the simplex alone

    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        if fused.usable(u, g):
            fused.sparsemax_vjp(u, g, beta)
            return g
        support = u > 0
        g = g.masked_fill_(~support, 0)
        mean = g.sum(0) / support.sum(0)
        return g.sub_(mean).masked_fill_(~support, 0).mul_(beta)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor) -> Tensor:
        # From ã, not t: a t that was read off rounded weights may miss the ends of its range.
        return delta.masked_fill_(aux.abs() >= 0.5 / beta, 0).mul_(beta)


@configurable
class Hardmax(Projection):
    """The vertex of the largest ũ, the first of equals: the limit of both other maps as beta grows.

    Its product is the straight-through one of the paper's appendix B.1, I - 1 1ᵀ / d (for d = 2 that is the appendix's
    matrix), zero where the largest ũ leads the next by more than 1. beta plays no role.
    """

    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        chosen = aux.argmax(0, keepdim=True)
        out = torch.zeros_like(aux) if out is None else out.zero_()
        return out.scatter_(0, chosen, 1)

    def pair(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        return torch.sub(torch.gt(aux, 0).to(aux.dtype).mul_(2), 1, out=out)

    def line(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        return torch.index_select(line.p / line.top, 0, line.labels(aux), out=out)

    def line_start(self, t: Tensor, line: Line, beta: float) -> Tensor:
        return t * (line.spacing * line.top)

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        return u.clone()

    def line_planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        return self.line_vjp(line.mean(u), line.slope(aux, u, g), beta, aux, line)  # as of an approximate softmax

    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        first, second = aux.topk(2, dim=0).values
        return g.sub_(g.mean(0)).masked_fill_(first - second > 1, 0)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor) -> Tensor:
        return delta.masked_fill_(aux.abs() > 0.5, 0)


def _grid(levels: Sequence[float]) -> int:
    """Into how many equal steps levels from -x to x cut the line, if they lie on its points; 0 if they do not."""
    steps = [high - low for low, high in itertools.pairwise(levels)]
    whole = [step / min(steps) for step in steps]
    symmetric = all(abs(low + high) < 1e-4 for low, high in zip(levels, reversed(levels), strict=True))
    on_grid = all(abs(count - round(count)) < 1e-4 for count in whole)
    return round(sum(whole)) if symmetric and on_grid else 0


def _descending(z: Tensor) -> list[Tensor]:
    """The planes of z (d, m) sorted for each variable, the largest first."""
    if len(z) > 8:
        return list(z.sort(dim=0, descending=True).values)
    planes = list(z)
    for last in range(len(planes) - 1, 0, -1):  # bubble sort as a network: whole planes are compared at once
        for i in range(last):
            planes[i], planes[i + 1] = torch.maximum(planes[i], planes[i + 1]), torch.minimum(planes[i], planes[i + 1])
    return planes
