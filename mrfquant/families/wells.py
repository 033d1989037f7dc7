"""Wells: labels for trained weights, which begin as wide as the network needs and narrow to their levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.families.base import Family, Gradient
from mrfquant.families.distribution import CHUNK, Distribution, Independent
from mrfquant.labelling import Block
from mrfquant.projections import Line, Projection, Softmax

FIRST_FITS = 20  # sweeps over labels and scales at the start; later on one at every step follows the weights


class Wells(Family):
    """Each label is a well around its level; natural parameters x (m,) are latent weights in the network's own units.

    Given its label, a weight is normal around the level, and 1 / beta is the share of its variance that x leaves open:

        E[w | x] = x / beta + (1 - 1 / beta) s E[q | x],    p(q | x) ∝ exp(-2 beta (x / s - q)² / Δ²)

    with the mean distance Δ of neighbouring levels. At beta = 1 the network computes with x itself, wherever the levels
    are; as beta grows the wells narrow, and the network ends on its levels. The scales s of runs of weights follow x at
    every step, by least squares for the labels nearest to it.

    Gradients reach x straight through, as in mirror descent, times 1 - a (1 - 1 / beta) t² for a Jacobian of softmax
    with the share a.
    """

    def __init__(self, block: Block, projection: Projection) -> None:
        super().__init__(block, projection)
        if type(projection) is not Softmax:
            raise BadInput(f"form 'wells' goes with softmax, not with {type(projection).__name__}: set form = 'line'")
        if not block.layouts:
            raise BadInput("form 'wells' fits scales to whole rows, which shard cuts: drop shard, or set form = 'line'")
        self.line = Line(block.q, 1.0)
        self._middle, self._half_gap = block.levels.middle, block.levels.half_gap
        self._jacobian_share = projection.mean_factors(1.0, Line(block.q[[0, -1]], 1.0))[1]  # type: ignore[index]

    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        return self._fitted(draw())

    def start_at(self, w: Tensor, beta: float, as_mean: bool = False) -> Tensor:
        return self._fitted(self.block.scaled(w.clone()))

    def write(self, x: Tensor, beta: float) -> None:
        w = self.block.w
        self._fit(x, 1)
        self.projection.mean(self._on_line(x), self.line, beta, out=w)
        if (self._middle, self._half_gap) != (0.0, 1.0):
            torch.add(self._middle, w, alpha=self._half_gap, out=w)
        self.block.apply_scale()
        w.lerp_(x, 1 / max(beta, 1.0))

    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        if gradient.weights is None or gradient.costs is not None or gradient.marginals is not None:
            raise BadInput(
                "costs of labels do not go with form 'wells', where scales follow the weights that costs would draw to "
                "0: set form = 'line'"
            )
        g, labels_share = gradient.weights, 1 - 1 / max(beta, 1.0)
        if self._jacobian_share:
            t = self.projection.mean(self._on_line(x), self.line, beta)
            g = g * t.square_().mul_(-self._jacobian_share * labels_share).add_(1)
        return g

    def labels(self, x: Tensor, beta: float) -> Tensor:
        return self.line.labels(self._on_line(x))

    def distribution(self, x: Tensor, beta: float) -> Distribution:
        def chunks() -> Iterator[Tensor]:
            for part in self._on_line(x).split(CHUNK):
                yield self._u(part, beta)

        return WeightsInWells(self.block, chunks, x, max(beta, 1.0))

    def _fitted(self, x: Tensor) -> Tensor:
        self._fit(x, FIRST_FITS)
        return x

    def _fit(self, x: Tensor, sweeps: int) -> None:
        if (scales := self.block.scales) is not None and not scales.given:
            scales.fit(x, self.block.q, self.block.midpoints, sweeps)

    def _on_line(self, x: Tensor) -> Tensor:
        """Return x in units of the line, on which neighbouring levels are 2 apart: (m,), new memory."""
        a = x.clone() if self.block.scales is None else self.block.scales.divide(x.clone())
        if self._middle:
            a.sub_(self._middle)
        return a if self._half_gap == self.line.top else a.mul_(self.line.top / self._half_gap)

    def _u(self, a: Tensor, beta: float) -> Tensor:
        return self.projection.planes(self.line.planes(a), beta)


class WeightsInWells(Independent):
    """The joint distribution of labels and weights: independent labels, and a normal weight around each level."""

    def __init__(self, block: Block, u: Callable[[], Iterator[Tensor]], x: Tensor, beta: float) -> None:
        super().__init__(block, u)
        self._x, self._beta = x, beta

    def mean(self) -> Tensor:
        return super().mean().lerp_(self._x, 1 / self._beta)

    def variance(self) -> Tensor:
        distance = 2 * self.block.levels.half_gap / (self.block.d - 1)
        within = torch.full_like(self._x, (distance / (2 * self._beta)) ** 2)  # of a weight around its level
        within = self.block.scaled(self.block.scaled(within))
        return super().variance().mul_((1 - 1 / self._beta) ** 2).add_(within, alpha=1 - 1 / self._beta)
