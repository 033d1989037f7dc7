"""Projections that reach the vertices of the simplex: sparsemax and hardmax."""

from __future__ import annotations

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.kernels import dispatch
from mrfquant.projections.base import Projection
from mrfquant.projections.line import Line


@configurable
class Sparsemax(Projection):
    """The Euclidean projection of beta ũ onto the simplex (Martins and Astudillo, 2016)."""

    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(aux) if out is None else out
        if dispatch.usable(aux, out):
            dispatch.run("simplex.sparsemax", aux, beta, out)
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

    def pair(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        return torch.mul(aux, 2 * beta, out=out).clamp_(-1, 1)

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        return u / beta  # it leaves points of the simplex alone

    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        if dispatch.usable(u, g):
            dispatch.run("simplex.sparsemax_product", u, g, beta)
            return g
        support = u > 0
        g = g.masked_fill_(~support, 0)
        mean = g.sum(0) / support.sum(0)
        return g.sub_(mean).masked_fill_(~support, 0).mul_(beta)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        # From ã, not t: a t that was read off rounded weights may miss the ends of its range.
        return delta.masked_fill_(aux.abs() >= 0.5 / beta, 0).mul_(beta)


@configurable
class Hardmax(Projection):
    """The vertex of the largest ũ, the first of equals: the limit of both other maps as beta grows.

    Its product is the straight-through one of the paper's appendix B.1, I - 1 1ᵀ / d (for d = 2 that is the appendix's
    matrix), zero where the largest ũ leads the next by more than 1. beta plays no role.
    """

    surrogate = True

    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        chosen = aux.argmax(0, keepdim=True)
        out = torch.zeros_like(aux) if out is None else out.zero_()
        return out.scatter_(0, chosen, 1)

    def mean(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        return torch.index_select(line.p / line.top, 0, line.labels(aux), out=out)

    def mean_start(self, t: Tensor, line: Line, beta: float) -> Tensor:
        return t * (line.spacing * line.top) if line.spacing else super().mean_start(t, line, beta)

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        return u.clone()

    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        first, second = aux.topk(2, dim=0).values
        return g.sub_(g.mean(0)).masked_fill_(first - second > 1, 0)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        return delta.masked_fill_(aux.abs() > 0.5, 0)


def _descending(z: Tensor) -> list[Tensor]:
    """Return the planes of z (d, m) sorted for each variable, the largest first."""
    if len(z) > 8:
        return list(z.sort(dim=0, descending=True).values)
    planes = list(z)
    for last in range(len(planes) - 1, 0, -1):  # bubble sort as a network: whole planes are compared at once
        for i in range(last):
            planes[i], planes[i + 1] = torch.maximum(planes[i], planes[i + 1]), torch.minimum(planes[i], planes[i + 1])
    return planes
