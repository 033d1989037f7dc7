"""Gradient descent on auxiliary variables that a projection takes to the simplex: PMF, PICM, PGD and mirror descent.

All of them take the step of Theorem 3.1's form,

    u^{k+1} = argmin over u in the simplexes of  eta E^k(u) - <u^k, u> - H(u) / beta

with a projection in the place of the argmin: softmax for the entropy H, sparsemax for the squared norm, hardmax for
neither. What is descended is either E(P(beta ũ)) on stored auxiliary variables ũ (Algorithm 1) or E itself on u, which
is projected right after each step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies import Energy
from mrfquant.errors import BadInput
from mrfquant.inference.base import Inference, OptimizerRecipe
from mrfquant.inference.entropies import Entropy
from mrfquant.labelling import Block, Labelling
from mrfquant.projections import Hardmax, Jacobian, Projection, Softmax, Sparsemax
from mrfquant.schedules import Constant, Geometric, GeometricTo, Schedule


def auxiliary_gradient(
    energy: Energy, projection: Projection, block: Block, u: Tensor, aux: Tensor, beta: float
) -> Tensor:
    """The gradient of E^k(P(beta ũ)) with respect to ũ at u = P(beta ũ). May overwrite `block.g` and planes u."""
    g = energy.weight_gradient(block)
    if g is None:
        vjp = projection.pair_vjp if block.is_pair else projection.planes_vjp
        return vjp(u, energy.gradient(block, u), beta, aux)
    # The same in the place of g and u: no new tensor of their size. w is taken for u q.
    g = g if block.scale is None else g.mul_(block.scale)
    if block.is_pair:
        delta = g if block.levels.half_gap == 1 else g.mul_(block.levels.half_gap)
        return projection.pair_vjp(u, delta, beta, aux)
    w = block.unscaled_weights()
    if block.mean_level:
        w = w - block.mean_level
    return projection.weights_vjp(u, block.centred_q, w, g, beta, aux)


class DefaultAnnealing(Schedule):
    """Beta where none is given: from 1 to `end` over the budget, or the paper's without one.

    Auxiliary variables are small numbers: it takes 1,000 to decide 98 % of the labels, after 100 or 800 steps, and
    10,000 for MD, whose steps do not grow with beta. On u itself beta acts anew at each step: little is enough.
    """

    def __init__(self, rho: float, end: float) -> None:
        self.endless, self.within = Geometric(rho), GeometricTo(end)

    def __call__(self, k: int, budget: int | None) -> float:
        return (self.endless if budget is None else self.within)(k, budget)


@configurable(supplied=["labelling", "optimizer"])
class ProjectedInference(Inference):
    """PROJ: the step that the solvers below share, with any projection; each of them is one.

    Args:
        projection: the map from auxiliary variables to u, as @Softmax().
        beta: by default it grows to 1,000 over the steps that `prepare` tells, which decides 98 % of the labels or more
            (MD's to 10,000; without auxiliary variables to 10, PGD's to 1.2); if it tells none, by 1.02 (PGD 1.01)
            every 100 steps.
        auxiliary: keep auxiliary variables and descend through the projection's Jacobian, or update u itself.
        entropy: what u stands for, for the projection softmax only; factorised by default.
    """

    method = "PROJ"

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        projection: Projection,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        auxiliary: bool = True,
        entropy: Entropy | None = None,
    ) -> None:
        if entropy is not None and not isinstance(projection, Softmax):
            raise BadInput(
                f"{type(entropy).__name__} goes with softmax, the projection is {type(projection).__name__}: set "
                "projection = @Softmax(), or leave the entropy out"
            )
        self.projection, self.auxiliary, self.entropy = projection, auxiliary, entropy
        # u of every block that is kept as planes; a pair's u can be read off the weights. The gradient is built in its
        # place, since u is not needed any more once the gradient is known.
        self._planes = {b.start: b.variables() for b in labelling.blocks if not b.is_pair}
        super().__init__(labelling, optimizer, beta or DefaultAnnealing(1.02, 1e3 if auxiliary else 10.0), energy)

    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        aux = draw() if block.is_pair else torch.stack([draw() for _ in range(block.d)])
        return aux if self.auxiliary else self._in_aux_form(block, self._project(block, aux))

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        u = block.around(w)
        if not self.auxiliary:
            return self._in_aux_form(block, u)
        return (self.projection.pair_start if block.is_pair else self.projection.planes_start)(u, self.beta)

    def gradient(self, block: Block, x: Tensor) -> Tensor | None:
        u = self.marginals(block, x)
        if self.auxiliary:
            return auxiliary_gradient(self.energy, self.projection_of(block), block, u, x, self.beta)
        g = self.energy.gradient(block, u)
        return g if block.is_pair else g.sub_(g.mean(0))

    def project(self, block: Block, x: Tensor) -> None:
        if self.auxiliary and not block.is_pair:
            self.projection_of(block).weights(x, block.q, self.beta, self._planes[block.start], block.w)
            block.apply_scale()
            return
        u = self._project(block, x)
        if not self.auxiliary:
            x.copy_(self._in_aux_form(block, u))
        block.write(u)  # comes last: a pair's u lies where the weights go

    def labels(self, block: Block, x: Tensor) -> Tensor:
        return block.likeliest(x if self.entropy is None else self.marginals(block, x))

    def settings(self) -> dict[str, float]:
        return super().settings() | ({"beta": self.beta} if self.relaxed else {})

    def restore(self, block: Block, x: Tensor) -> None:
        if not block.is_pair:
            if self.auxiliary:  # by the operations of `project`, so that it is the same u to the bit
                w = torch.empty_like(block.w)
                self.projection_of(block).weights(x, block.q, self.beta, self._planes[block.start], w)
            else:
                self._planes[block.start].copy_(x)

    def marginals(self, block: Block, x: Tensor) -> Tensor:
        return block.pair_of_weights() if block.is_pair else self._planes[block.start]

    def projection_of(self, block: Block) -> Projection:
        """The map from the auxiliary variables of a block to its u."""
        if self.entropy is None:
            return self.projection
        assert isinstance(self.projection, Softmax)
        return self.entropy.projection(block, self.projection, self.energy)

    def _project(self, block: Block, x: Tensor) -> Tensor:
        projection = self.projection_of(block)
        if block.is_pair:
            return projection.pair(x, self.beta, out=block.w)
        return projection.planes(x, self.beta, out=self._planes[block.start])

    @staticmethod
    def _in_aux_form(block: Block, u: Tensor) -> Tensor:
        """u where auxiliary variables are expected: ã = (u_2 - u_1) / 2 is half of t."""
        return u / 2 if block.is_pair else u.clone()


# The solvers below pass on every argument, so that none is left for gin to fill in with ProjectedInference's.


@configurable(supplied=["labelling", "optimizer"])
class ProximalMeanField(ProjectedInference):
    """PMF: the softmax projection with annealed beta (Algorithm 1, Theorem 3.1).

    Args:
        beta: as of `ProjectedInference` by default.
        jacobian: of softmax, see `mrfquant.projections.Softmax`.
        auxiliary: keep auxiliary variables (Algorithm 1), or update u itself by Theorem 3.1.
        entropy: factorised by default, which makes the projection softmax.
    """

    method = "PMF"

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        jacobian: Jacobian = "reference",
        auxiliary: bool = True,
        entropy: Entropy | None = None,
    ) -> None:
        beta = beta or DefaultAnnealing(1.02, 1e3 if auxiliary else 10.0)
        super().__init__(labelling, optimizer, Softmax(jacobian), beta, energy, auxiliary, entropy)
        if not auxiliary:
            self.method = "PMF without auxiliary"


@configurable(supplied=["labelling", "optimizer"])
class SparsemaxPGD(ProjectedInference):
    """PGD: the Euclidean projection, sparsemax, with annealed beta."""

    method = "PGD"

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        auxiliary: bool = True,
    ) -> None:
        beta = beta or DefaultAnnealing(1.01, 1e3 if auxiliary else 1.2)
        super().__init__(labelling, optimizer, Sparsemax(), beta, energy, auxiliary, None)


@configurable(supplied=["labelling", "optimizer"])
class ProximalICM(ProjectedInference):
    """PICM: the hardmax projection, PMF's limit for large beta; for the levels -1, 1 it is BinaryConnect (Prop. 3.1).

    Args:
        clip: keep the auxiliary variables in the simplex, as BinaryConnect keeps its latent weights within the levels
            (appendix B); without it, variables whose label leads by more than 1 get no gradient any more.
    """

    method = "PICM"
    relaxed = False

    def __init__(
        self, labelling: Labelling, optimizer: OptimizerRecipe, energy: Energy | None = None, clip: bool = True
    ) -> None:
        self.clip, self._nearest = clip, Sparsemax()
        super().__init__(labelling, optimizer, Hardmax(), Constant(1.0), energy, True, None)

    def project(self, block: Block, x: Tensor) -> None:
        if self.clip and block.is_pair:
            x.clamp_(-0.5, 0.5)
        elif self.clip:
            self._nearest.planes(x, 1.0, out=x)
        super().project(block, x)


@configurable(supplied=["labelling", "optimizer"])
class MirrorDescent(ProjectedInference):
    """MD: the dual form of mirror descent, ũ <- ũ - eta g, u = softmax(beta ũ) (Ajanthan et al., 2021, MD-tanh-S).

    The dual variables are stored and never computed back from u, which is what keeps it stable at large beta.
    """

    method = "MD"

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
    ) -> None:
        projection = Softmax("straight_through")
        super().__init__(labelling, optimizer, projection, beta or DefaultAnnealing(1.02, 1e4), energy, True, None)

    def gradient(self, block: Block, x: Tensor) -> Tensor:
        # The mirror map's gradient is that of E with respect to u: beta enters the projection only.
        return auxiliary_gradient(self.energy, self.projection, block, self.marginals(block, x), x, 1.0)
