"""The interface of a projection."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from mrfquant.projections.line import PART, Line

SEARCH = 300  # steps towards auxiliary variables that give a wanted u
BISECTIONS, START_REACH = 50, 10.0  # likewise on a line, and how far beyond its levels they lie, in units of 1 / beta


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
