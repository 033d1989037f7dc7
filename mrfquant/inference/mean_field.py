"""MF: mean-field without a proximal term, a fixed-point iteration on the current energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mrfquant.config.settings import Damping, configurable
from mrfquant.energies import Energy
from mrfquant.inference.base import OptimizerRecipe
from mrfquant.inference.entropies import Entropy
from mrfquant.inference.projected import ProjectedInference
from mrfquant.labelling import Block, Labelling
from mrfquant.projections import Softmax
from mrfquant.schedules import Constant, Schedule


@configurable(supplied=["labelling", "optimizer"])
class MeanField(ProjectedInference):
    """u = softmax(-beta ∇E(u)): where this holds, u minimises E(u) - H(u) / beta to first order.

    The variables are the natural parameters θ of u = softmax(beta θ), and a step is the damped iteration

        θ <- damping θ - (1 - damping) ∇E^k(u).

    It is made for fixed energies, where a little damping makes the iteration converge. Under mini-batch gradients the
    past has to be averaged over many steps, so damping should be close to 1 and beta of the order of the number of
    training images; even so it stays far behind solvers with a proximal term, since the gradient is taken at the mean
    weights alone. docs/examples/own_solver.py takes it at sampled weights. The optimizer drives the free parameters
    only.
    """

    method = "MF"
    by_weight = True

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        damping: Damping = 0.999,
        entropy: Entropy | None = None,
        **settings: Any,
    ) -> None:
        self.damping = damping
        projection, beta = Softmax("reference"), beta or Constant(1.0)
        super().__init__(labelling, optimizer, projection, beta, energy, entropy=entropy, **settings)

    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        # Scaled so that the first u is as undecided as the other solvers' is at beta = 1.
        return super().start(block, lambda: draw() / self.beta)

    def update(self, block: Block, x: Tensor) -> None:
        family = self.family(block)
        g = family.mean_gradient(self.energy.gradient(family.distribution(x, self.beta)), x, self.beta)
        x.mul_(self.damping).sub_(g, alpha=1 - self.damping)
