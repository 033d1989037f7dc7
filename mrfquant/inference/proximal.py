"""The solvers that differ by their projection: PMF (softmax), PGD (sparsemax), PICM (hardmax) and mirror descent."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies import Energy
from mrfquant.families.line import CLIP_SPACING
from mrfquant.inference.base import OptimizerRecipe
from mrfquant.inference.entropies import Entropy
from mrfquant.inference.projected import DefaultAnnealing, ProjectedInference, form_of
from mrfquant.labelling import Block, Labelling
from mrfquant.projections import Hardmax, Jacobian, Softmax, Sparsemax
from mrfquant.schedules import Constant, Schedule


@configurable(supplied=["labelling", "optimizer"])
class ProximalMeanField(ProjectedInference):
    """PMF: the softmax projection with annealed beta (Algorithm 1, Theorem 3.1).

    Args:
        beta: as of `ProjectedInference` by default.
        jacobian: of softmax, see `mrfquant.projections.Softmax`; 'reference' by default, 'straight_through' in wells.
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
        jacobian: Jacobian | None = None,
        auxiliary: bool = True,
        entropy: Entropy | None = None,
        **settings: Any,
    ) -> None:
        form = form_of(settings.pop("form", None), Softmax(), auxiliary, entropy, energy, settings)
        softmax = Softmax(jacobian or ("straight_through" if form == "wells" else "reference"))
        super().__init__(labelling, optimizer, softmax, beta, energy, auxiliary, entropy, form=form, **settings)
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
        **settings: Any,
    ) -> None:
        beta = beta or DefaultAnnealing(1.01, 1e3 if auxiliary else 1.2)
        super().__init__(labelling, optimizer, Sparsemax(), beta, energy, auxiliary, **settings)


@configurable(supplied=["labelling", "optimizer"])
class ProximalICM(ProjectedInference):
    """PICM: the hardmax projection, PMF's limit for large beta.

    For the levels -1, 1 it takes BinaryConnect's steps (Prop. 3.1) until a variable reaches its bound, which is 0.5
    here and 1 there.

    Args:
        clip: keep the auxiliary variables in the simplex, as BinaryConnect keeps its latent weights within the levels
            (appendix B); without it, variables whose label leads by more than 1 get no gradient any more.
    """

    method = "PICM"
    relaxed = False
    by_weight = True

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        energy: Energy | None = None,
        clip: bool = True,
        **settings: Any,
    ) -> None:
        self.clip = clip
        super().__init__(labelling, optimizer, Hardmax(), Constant(1.0), energy, **settings)

    def spacing(self, block: Block) -> float:
        return CLIP_SPACING

    def write(self, block: Block, x: Tensor) -> None:
        if self.clip:
            self.family(block).clip(x)
        super().write(block, x)


@configurable(supplied=["labelling", "optimizer"])
class MirrorDescent(ProjectedInference):
    """MD: the dual form of mirror descent, ũ <- ũ - eta g, u = softmax(beta ũ) (Ajanthan et al., 2021, MD-tanh-S).

    The dual variables are stored and never computed back from u, which is what keeps it stable at large beta.
    """

    method = "MD"
    last_beta = 1e4
    mirror = True  # the mirror map's gradient is that of E with respect to u: beta enters the projection only

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(labelling, optimizer, Softmax("straight_through"), beta, energy, **settings)
