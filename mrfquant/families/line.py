"""One number a weight: two levels, or ordered levels on a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrfquant.families.base import INIT_LABEL_FLOOR, Betas, Family, FusedRule, Gradient
from mrfquant.families.distribution import CHUNK, Distribution, Independent, PairOfLabels
from mrfquant.kernels import dispatch, fused
from mrfquant.labelling import Block
from mrfquant.projections import Line, Projection, Softmax

CLIP_SPACING = 0.5  # spacing of the levels for variables that are kept in the simplex


class LoopPlan(NamedTuple):
    """Arguments of `loop` as long as beta stays: factors of the product, the kernel's arguments for the mean."""

    betas: Betas
    product: tuple[float, float, float]
    mean: tuple[Any, ...]


class LineFamily(Family):
    """Ordered levels with natural parameters x (m,) on a line, and the mean t (m,) of the levels.

    t goes from -1 at the lowest to 1 at the highest level, and the block's weights are t in units of the levels, times
    the scales: what the family needs of its mean it reads off them.

    Args:
        spacing: half the distance in x between neighbouring levels.
    """

    def __init__(self, block: Block, projection: Projection, spacing: float) -> None:
        super().__init__(block, projection)
        self.line = Line(block.q, spacing)
        self._levels = (block.levels.middle, block.levels.half_gap)
        self._plan: LoopPlan | None = None

    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        # As far as the levels reach: small numbers would all have the same label.
        x, reach = draw(), self.line.spacing * self.line.top
        for part in x.split(self.block.parameter_sizes):
            part.mul_(reach / part.abs().max().clamp(min=torch.finfo(x.dtype).tiny))
        return x

    def start_at(self, w: Tensor, beta: float, as_mean: bool = False) -> Tensor:
        (middle, half_gap), x = self._levels, torch.empty_like(w)
        for part, out in zip(self.projection.split(w), self.projection.split(x), strict=True):
            t = ((part - middle) / half_gap).clamp_(INIT_LABEL_FLOOR - 1, 1 - INIT_LABEL_FLOOR)
            out.copy_(t.div_(2) if as_mean else self.projection.mean_start(t, self.line, beta))
        return x

    def write(self, x: Tensor, beta: float) -> None:
        self.projection.mean(x, self.line, beta, out=self.block.w)
        self._scale_t()

    def _scale_t(self) -> None:
        """Make weights of the t that was written in their place."""
        w, (middle, half_gap) = self.block.w, self._levels
        if self._levels != (0.0, 1.0):
            torch.add(middle, w, alpha=half_gap, out=w)
        self.block.apply_scale()

    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        if gradient.costs is None and gradient.marginals is None:
            return self.projection.mean_vjp(self._t(), self._on_t(gradient), factor, x, self.line)
        u, g = self._u(x, beta), gradient.on_labels(self.block)
        if self.projection.surrogate:
            # Of an approximate product with planes, the part along the line may point the wrong way: what it does to
            # labels between the ends is lost.
            return self.projection.mean_vjp(self.line.mean(u), self.line.slope(x, u, g), factor, x, self.line)
        return self.line.pull_back(self.projection.planes_vjp(u, g, factor, self.line.planes(x)))

    def mean_gradient(self, gradient: Gradient, x: Tensor, beta: float) -> Tensor:
        if gradient.costs is None and gradient.marginals is None:
            return self._on_t(gradient).div_(self.line.top)
        u = self._u(x, beta)
        return self.line.slope(x, u, gradient.on_labels(self.block)).div_(self.line.top)

    def labels(self, x: Tensor, beta: float) -> Tensor:
        return self.line.labels(x) if self.projection.by_weight else self._u(x, beta).argmax(0).int()

    def distribution(self, x: Tensor, beta: float) -> Distribution:
        def chunks() -> Iterator[Tensor]:
            for part in x.split(CHUNK if self.projection.by_weight else max(1, len(x))):
                yield self._u(part, beta)

        return Independent(self.block, chunks)

    def clip(self, x: Tensor) -> None:
        reach = CLIP_SPACING * self.line.top
        x.clamp_(-reach, reach)

    def can_loop(self, x: Tensor) -> bool:
        """Return whether there are compiled loops for `loop`: numba, softmax, a product that needs the mean alone."""
        if type(self.projection) is not Softmax or self.projection.mean_factors(1.0, self.line) is None:
            return False
        return dispatch.usable(x, self.block.g, self.block.w)

    def loop(self, gradient: Gradient, x: Tensor, betas: Betas, rule: FusedRule) -> bool:
        """Do what `pull_back`, an optimizer and `write` would do in one pass over memory; see `choice.Backend`."""
        from mrfquant.kernels.steps import step

        block, g, softmax = self.block, gradient.weights, self.projection
        if g is None or gradient.marginals is not None or (how_to_move := rule(x)) is None:
            return False
        assert isinstance(softmax, Softmax)
        if self._plan is None or self._plan.betas != betas:
            product, mean = softmax.mean_factors(betas[1], self.line), softmax.mean_kernel(betas[2], self.line)
            assert product is not None
            self._plan = LoopPlan(betas, product, mean.arguments)
        costs, (_, product, mean_arguments) = fused.NO_COSTS, self._plan
        if gradient.costs is not None:
            costs = softmax.mean_costs(gradient.costs, block.parameter_sizes, betas[0], self.line)
        runs = None if block.scales is None else (block.scales.values, block.scales.ends, block.scales.start)
        step(x, g, block.w, runs, self._levels, product, how_to_move, mean_arguments, costs)  # clears g
        if g is not block.g:
            block.g.zero_()
        return True

    def _u(self, x: Tensor, beta: float) -> Tensor:
        return self.projection.planes(self.line.planes(x), beta)

    def _t(self) -> Tensor:
        """Return the t that the weights were written from; w itself for levels from -1 to 1 without scale."""
        middle, half_gap = self._levels
        if self.block.scales is None and self._levels == (0.0, 1.0):
            return self.block.w
        return ((self.block.unscaled_weights() - middle) / half_gap).clamp_(-1, 1)

    def _on_t(self, gradient: Gradient) -> Tensor:
        """Return the gradient with respect to t, in the place of that with respect to the weights."""
        g, half_gap = gradient.weights, self._levels[1]
        if g is None:
            return torch.zeros_like(self.block.w)
        g = self.block.scaled(g)
        return g if half_gap == 1 else g.mul_(half_gap)


class PairFamily(LineFamily):
    """Two levels: the line whose spacing plays no role. u is known by t, so that no planes are ever made."""

    def __init__(self, block: Block, projection: Projection) -> None:
        super().__init__(block, projection, 0.0)
        self._distribution = PairOfLabels(block, self._t)

    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        return draw()

    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        return self.projection.mean_vjp(self._t(), self.mean_gradient(gradient, x, beta), factor, x, self.line)

    def mean_gradient(self, gradient: Gradient, x: Tensor, beta: float) -> Tensor:
        delta = self._on_t(gradient)
        if (costs := gradient.costs) is not None:
            delta = delta + self.block.repeat_per_weight((costs[:, 1] - costs[:, 0]) / 2)
        if (marginals := gradient.marginals) is not None:
            delta = delta + (marginals[1] - marginals[0]) / 2
        return delta

    def labels(self, x: Tensor, beta: float) -> Tensor:
        return ((x if self.projection.by_weight else self._t()) > 0).int()

    def distribution(self, x: Tensor, beta: float) -> Distribution:
        return self._distribution

    def project(self, x: Tensor, beta: float) -> None:
        t = self.projection.mean(x, self.line, beta, out=self.block.w)
        torch.div(t, 2, out=x)  # half the difference of the two probabilities, as x is half that of two planes
        self._scale_t()
