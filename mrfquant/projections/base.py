"""The interface of a projection."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from mrfquant.projections.line import CHUNK, Line

SEARCH_STEPS = 300  # towards auxiliary variables that give a wanted u
BISECTIONS, START_REACH = 50, 10.0  # likewise on a line, and how far beyond its levels they lie, in units of 1 / beta
START_POINTS, START_TOLERANCE = 2**12, 1e-6  # of a table of a line's means, and how far from a mean a start may be
Costs = tuple[Sequence[int], Tensor]  # numbers of weights, and costs of labels (parameters, d) that they have


class Projection(ABC):
    """u = P(beta ũ), on planes and on a line, and the products of gradients with its Jacobian.

    A subclass writes `planes` and `planes_vjp`; the rest follows from them, and may be overridden where there is a
    faster way. `out` and the gradients given may be overwritten; u, t and the auxiliary variables are only read,
    except by `weights_vjp`, which may build its result in u. `out` may be the auxiliary variables themselves.

    Attributes:
        surrogate: whether products are made with another matrix than the true Jacobian.
        by_weight: whether each weight is projected by itself, so that the largest ũ has the largest u.
    """

    surrogate = False
    by_weight = True

    @abstractmethod
    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        """Return u (d, m) of ũ (d, m)."""

    @abstractmethod
    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        """Return the gradient with respect to ũ (d, m) of what has the gradient g (d, m) with respect to u."""

    def planes_start(self, u: Tensor, beta: float) -> Tensor:
        """Return auxiliary variables ũ (d, m) that are mapped to u (d, m), all of whose labels have some probability.

        They are searched for unless a subclass knows them: a label that gets less than its u is raised, by steps that
        are halved for a variable that they take too far.
        """
        aux, step, before = u / beta, torch.full_like(u[0], 1 / beta), torch.full_like(u[0], math.inf)
        for _ in range(SEARCH_STEPS):
            missing = u - self.planes(aux, beta)
            error = missing.abs().amax(0)
            step, before = torch.where(error > before, step / 2, step), error
            aux.addcmul_(step, missing)
        return aux

    def mean(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        """Return the mean t (m,) of a (m,), the points of a line."""
        return (self.pair if line.is_pair else self._mean_of_planes)(aux, line, beta, out)

    def pair(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        """Return the mean for two levels, t = u_2 - u_1 of ũ = (-a, a); a subclass may have a closed form."""
        return self._mean_of_planes(aux, line, beta, out)

    def _mean_of_planes(self, aux: Tensor, line: Line, beta: float, out: Tensor | None) -> Tensor:
        parts = [line.mean(self.planes(line.planes(part), beta)) for part in self.split(aux)]
        return torch.cat(parts, out=out)

    def mean_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        """Return the gradient with respect to a (m,), in the sense of `Line`.

        Given is the gradient δ (m,) with respect to t (m,).
        """
        return (self.pair_vjp if line.is_pair else self._vjp_of_planes)(t, delta, beta, aux, line)

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        """Return the same for two levels; a subclass may have a closed form."""
        return self._vjp_of_planes(t, delta, beta, aux, line)

    def _vjp_of_planes(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        for place, part in zip(self.split(delta), self.split(aux), strict=True):
            planes = line.planes(part)
            g = (line.centred / line.top)[:, None] * place
            place.copy_(line.pull_back(self.planes_vjp(self.planes(planes, beta), g, beta, planes)))
        return delta

    def mean_start(self, t: Tensor, line: Line, beta: float) -> Tensor:
        """Return a (m,) that is mapped to t (m,), strictly between -1 and 1.

        t grows with a: few are found by bisection, many between those of a table, by false position and bisection.
        """
        if line.is_pair:
            first, second = self.planes_start(torch.stack([1 - t, 1 + t]).div_(2), beta)
            return (second - first) / 2
        if len(t) <= START_POINTS or not self.by_weight:
            return self._bisected(t, line, beta)
        first, last = t.min(), t.max()
        table = torch.linspace(0, 1, START_POINTS, dtype=t.dtype, device=t.device).mul_(last - first).add_(first)
        starts = self._bisected(table, line, beta)
        place = ((t - first) * ((START_POINTS - 1) / (last - first))).nan_to_num_().int().clamp_(0, START_POINTS - 2)
        low, high, below, above = starts[place], starts[place + 1], table[place], table[place + 1]
        for number in range(BISECTIONS):  # once, for a smooth map
            share = ((t - below) / (above - below)).nan_to_num_(0.5).clamp_(0, 1)
            a = torch.lerp(low, high, share.fill_(0.5) if number % 2 else share)  # of use at a kink
            off = self.mean(a, line, beta, out=torch.empty_like(a)).sub_(t)
            if off.abs().max() <= START_TOLERANCE:
                break
            short, found = off < 0, off.add_(t)
            low, below = torch.where(short, a, low), torch.where(short, found, below)
            high, above = torch.where(short, high, a), torch.where(short, above, found)
        return a

    def _bisected(self, t: Tensor, line: Line, beta: float) -> Tensor:
        reach = line.spacing * line.top + START_REACH / beta
        low, high = torch.full_like(t, -reach), torch.full_like(t, reach)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.mean(middle, line, beta) < t
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def weights(self, aux: Tensor, q: Tensor, beta: float, out: Tensor, w: Tensor) -> None:
        """Write u (d, m) of ũ (d, m) into `out`, and the expected weights q u (m,) into w; q: (d,) levels."""
        torch.mv(self.planes(aux, beta, out).t(), q, out=w)

    def weights_vjp(
        self, u: Tensor, q: Tensor, w: Tensor | None, g: Tensor, beta: float, aux: Tensor, costs: Costs | None = None
    ) -> Tensor:
        """Return `planes_vjp` of the gradient q gᵀ of a function of the weights w = q u; a subclass may save passes.

        Args:
            u: (d, m) of ũ.
            q: (d, 1) levels less their mean.
            w: (m,) expected weights q u; None with costs, which do not need them.
            g: (m,) gradient with respect to w.
            beta: the inverse temperature.
            aux: ũ (d, m).
            costs: of labels, which are added to q gᵀ.
        """
        gradient = q * g
        if costs is not None:
            sizes = torch.tensor(costs[0], device=g.device)
            gradient += costs[1].T.repeat_interleave(sizes, 1, output_size=len(g))
        return self.planes_vjp(u, gradient, beta, aux)

    def split(self, aux: Tensor) -> tuple[Tensor, ...]:
        """Cut variables (m,) of a line into chunks whose planes are made at once."""
        whole = not self.by_weight or torch.compiler.is_compiling()  # a compiler makes no planes
        return aux.split(max(1, len(aux)) if whole else CHUNK)
