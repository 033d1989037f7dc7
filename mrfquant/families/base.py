"""The interface of a family, and the one gradient that an energy answers with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.families.distribution import Distribution
from mrfquant.kernels.fused import Rule
from mrfquant.labelling import Block
from mrfquant.projections import Projection

Form = Literal["line", "planes", "wells"]
Betas = tuple[float, float, float]  # what x was written at, the factor of `pull_back`, and beta after the step
FusedRule = Callable[[Tensor], Rule | None]
INIT_LABEL_FLOOR = 0.01  # probability that a start at given weights leaves for all labels together


@dataclass
class Gradient:
    """The gradient of an energy at the present distribution, in three parts that add up; None is nothing.

    Attributes:
        weights: (m,) with respect to the expected weights. It may be `block.g` itself: families overwrite it.
        costs: (parameters, d) of the labels, the same for all weights of a parameter.
        marginals: (d, m) with respect to the probabilities of single labels.
    """

    weights: Tensor | None = None
    costs: Tensor | None = None
    marginals: Tensor | None = None

    def plus(self, other: Gradient, factor: float = 1.0) -> Gradient:
        """Return the sum with `factor` times another one."""
        pairs = zip(self._parts(), other._parts(), strict=True)
        return Gradient(*(_sum(mine, theirs, factor) for mine, theirs in pairs))

    def on_labels(self, block: Block) -> Tensor:
        """Return all parts as one gradient with respect to the probabilities of single labels: (d, m), a new tensor."""
        if self.weights is None:
            total = torch.zeros(block.d, block.m, dtype=block.w.dtype, device=block.w.device)
        else:
            total = block.q[:, None] * (self.weights if block.scales is None else block.scaled(self.weights.clone()))
        if self.costs is not None:
            total += block.repeat_per_weight(self.costs.T)
        return total if self.marginals is None else total.add_(self.marginals)

    def _parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.weights, self.costs, self.marginals


def _sum(one: Tensor | None, two: Tensor | None, factor: float) -> Tensor | None:
    if two is None:
        return one
    two = two if factor == 1 else two * factor
    return two if one is None else one + two


class Family(ABC):
    """Natural parameters x for the labels of a block, (m,) or (k, m), and what follows from them at beta.

    A subclass writes `start`, `start_at`, `write`, `pull_back`, `labels` and `distribution`. The rest is for solvers
    of a special kind.

    Args:
        block: whose labels.
        projection: what x is combined with; see `mrfquant.projections`.
    """

    numbers = 1  # of x for each weight

    def __init__(self, block: Block, projection: Projection) -> None:
        self.block, self.projection = block, projection

    @abstractmethod
    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        """Return random x; `draw` gives random initial weights (m,), new ones at each call."""

    @abstractmethod
    def start_at(self, w: Tensor, beta: float, as_mean: bool = False) -> Tensor:
        """Return x whose expected weights are w (m,), in units of the levels, as far as the levels reach.

        With `as_mean`, x are the mean parameters u themselves; see `project`.
        """

    @abstractmethod
    def write(self, x: Tensor, beta: float) -> None:
        """Set the block's weights to their expectation under x at beta."""

    @abstractmethod
    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        """Return the gradient with respect to x, through the Jacobian of the projection at beta.

        Args:
            gradient: of the energy, which may be overwritten, as `block.g` may be.
            x: the natural parameters that the block's weights were written from.
            beta: the inverse temperature that they were written at.
            factor: what stands in front of the Jacobian: beta, or 1 for mirror descent.
        """

    @abstractmethod
    def labels(self, x: Tensor, beta: float) -> Tensor:
        """Return the mode, the likeliest labels of the block: int32 (m,)."""

    @abstractmethod
    def distribution(self, x: Tensor, beta: float) -> Distribution:
        """Return the distribution over labels of x at beta, of which the block's weights are the mean."""

    def mean_gradient(self, gradient: Gradient, x: Tensor, beta: float) -> Tensor:
        """Return the gradient with respect to the mean parameters, in the form of x: the natural gradient."""
        raise BadInput(f"{type(self).__name__} has no natural gradient: take a solver with auxiliary variables")

    def clip(self, x: Tensor) -> None:
        """Keep x in the simplex, in place."""
        raise BadInput(f"{type(self).__name__} has no simplex to clip variables to: set clip = False")

    def project(self, x: Tensor, beta: float) -> None:
        """Replace x by the mean parameters u that it is mapped to, in place, and write the weights."""
        raise BadInput(f"{type(self).__name__} needs auxiliary variables: set auxiliary = True")

    def restore(self, x: Tensor, beta: float, as_mean: bool = False) -> None:  # noqa: B027 - most keep nothing
        """Rebuild what the family keeps besides x and the weights, when both were just loaded."""
