"""Gradient descent on auxiliary variables that a projection takes to the simplex.

The solvers of proximal.py take the step of Theorem 3.1's form,

    u^{k+1} = argmin over u in the simplexes of  eta E^k(u) - <u^k, u> - H(u) / beta

with a projection in the place of the argmin: softmax for the entropy H, sparsemax for the squared norm, hardmax for
neither. What is descended is either E(P(beta ũ)) on stored auxiliary variables ũ (Algorithm 1) or E itself on u, which
is projected right after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from mrfquant.compute import check_memory
from mrfquant.config.settings import configurable
from mrfquant.energies import Energy
from mrfquant.errors import BadInput
from mrfquant.families import Backend, Distribution, Family, Form, backend_of, family_of
from mrfquant.inference.base import Inference, OptimizerRecipe
from mrfquant.inference.entropies import Entropy
from mrfquant.labelling import Block, Labelling
from mrfquant.projections import Projection, Softmax
from mrfquant.schedules import Geometric, GeometricTo, Schedule

INIT_HALF_WIDTH = 0.2  # range of random line variables at beta = 1, about as far as a run moves them


class DefaultAnnealing(Schedule):
    """Beta where none is given: from 1 to `end` over the budget, or the paper's without one.

    Auxiliary variables are small numbers: it takes 1,000 to decide 98 % of the labels, after 100 or 800 steps, and
    10,000 for MD, whose steps do not grow with beta. On u itself beta acts anew at each step: little is enough. Wells
    are narrow early, so that most of the run trains labels.
    """

    def __init__(self, rho: float, end: float, by: float = 1.0) -> None:
        self.endless, self.within = Geometric(rho), GeometricTo(end, by=by)

    def __call__(self, k: int, budget: int | None) -> float:
        return (self.endless if budget is None else self.within)(k, budget)


def form_of(
    form: Form | None, projection: Projection, auxiliary: bool, entropy: Entropy | None, settings: Mapping[str, Any]
) -> Form:
    """Return the form of a solver's variables, chosen by where they start if none is given."""
    learned = bool(settings.get("learn_scale"))
    if form is None:
        soft = auxiliary and entropy is None and type(projection) is Softmax
        form = "wells" if soft and settings.get("start") == "weights" and not learned else "line"
    elif form == "wells" and learned:
        raise BadInput("form 'wells' fits the scales itself: drop learn_scale, or set form = 'line'")
    elif form == "wells" and not auxiliary:
        raise BadInput("form 'wells' keeps latent weights as auxiliary variables: drop auxiliary = False")
    return form


@configurable(supplied=["labelling", "optimizer"])
class ProjectedInference(Inference):
    """PROJ: the step that the solvers of proximal.py share, with any projection; each of them is one.

    Args:
        projection: the map from auxiliary variables to u, as @Softmax().
        beta: by default it grows to 1,000 over the steps that `prepare` tells, which decides 98 % of the labels or more
            (MD's to 10,000; without auxiliary variables to 10, PGD's to 1.2); if it tells none, by 1.02 (PGD 1.01)
            every 100 steps. In wells it is 10,000 after the first third of the steps.
        auxiliary: keep auxiliary variables and descend through the projection's Jacobian, or update u itself.
        entropy: what u stands for, for the projection softmax only; factorised by default.
        form: what the variables are; see `mrfquant.families`. From trained weights, 'wells': latent weights in the
            network's own units, with scales that follow them (unless they are learned). Otherwise 'line', a number for
            each weight, or 'planes', one for each level of it, as in the paper. Without auxiliary variables, three
            levels and more are planes.
    """

    method = "PROJ"
    by_weight = True
    last_beta = 1e3  # by default
    mirror = False  # whether the product with the Jacobian leaves beta out, as mirror descent does

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        projection: Projection,
        beta: Schedule | None = None,
        energy: Energy | None = None,
        auxiliary: bool = True,
        entropy: Entropy | None = None,
        *,
        form: Form | None = None,
        compiled: bool = True,
        **settings: Any,
    ) -> None:
        if entropy is not None and not isinstance(projection, Softmax):
            raise BadInput(
                f"{type(entropy).__name__} goes with softmax, the projection is {type(projection).__name__}: set "
                "projection = @Softmax(), or leave the entropy out"
            )
        self.projection, self.auxiliary, self.entropy = projection, auxiliary, entropy
        self.compiled = compiled
        self.form = form_of(form, projection, auxiliary, entropy, settings)
        if self.form == "wells":
            beta = beta or DefaultAnnealing(1.2, 1e4, by=1 / 3)
        beta = beta or DefaultAnnealing(1.02, self.last_beta if auxiliary else 10.0)
        super().__init__(labelling, optimizer, beta, energy, **settings)

    def bind(self, start: str) -> None:
        if self.entropy is not None and self.labelling.sharded:
            raise BadInput(f"{type(self.entropy).__name__} works on whole layers, which shard cuts: drop one")
        self._start = start
        self._backends: dict[int, Backend | None] = {}  # of those blocks that have taken a step
        self._families = {block.number: self._new_family(block) for block in self.labelling.local_blocks}
        variables = sum(family.numbers * family.block.m for family in self._families.values())
        # These, and the optimizer's.
        check_memory(4 * 2 * variables, self.labelling.labelled.w.device, f"a labelling of {variables:,} variables")

    def spacing(self, block: Block) -> float:
        """Return the spacing of a block's levels on a line, see `Line`.

        From a random start, the variables are small numbers; from weights, u is a normal distribution around them,
        whose mean they are if its deviation is half the distance of the levels.
        """
        first = self.schedule(0, None)
        return (INIT_HALF_WIDTH / (block.d - 1) if self._start == "random" else 1.0) / first

    def family(self, block: Block) -> Family:
        """Return the family of a block's labels."""
        found = self._families[block.number]
        return found if found.block is block else self._new_family(block)  # a whole block, of which this has a shard

    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        x = self.family(block).start(draw, self.beta)
        if not self.auxiliary:
            self.family(block).project(x, self.beta)
        return x

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        return self.family(block).start_at(w, self.beta, as_mean=not self.auxiliary)

    def update(self, block: Block, x: Tensor) -> Tensor | None:
        family = self.family(block)
        gradient = self.energy.gradient(family.distribution(x, self.beta))
        if self.auxiliary:
            return family.pull_back(gradient, x, self.beta, 1.0 if self.mirror else self.beta)
        return family.mean_gradient(gradient, x, self.beta)

    def write(self, block: Block, x: Tensor) -> None:
        if self.auxiliary:
            self.family(block).write(x, self.beta)
        else:
            self.family(block).project(x, self.beta)

    def labels(self, block: Block, x: Tensor) -> Tensor:
        return self.family(block).labels(x, self.beta)

    def distribution(self, block: Block, x: Tensor) -> Distribution:
        return self.family(block).distribution(x, self.beta)

    def restore(self, block: Block, x: Tensor) -> None:
        self.family(block).restore(x, self.beta, as_mean=not self.auxiliary)

    def fused_update(self, block: Block, x: Tensor) -> bool:
        if block.number not in self._backends:
            chosen = self._is_plain and self.auxiliary and self.compiled
            self._backends[block.number] = backend_of(self._families[block.number], x) if chosen else None
        if (backend := self._backends[block.number]) is None:
            return False
        beta = self.beta
        gradient = self.energy.gradient(self._families[block.number].distribution(x, beta))
        betas = (beta, 1.0 if self.mirror else beta, self.schedule(self.iteration + 1, self.budget))
        if not backend(gradient, x, betas, self.fused_rule):
            self._backends[block.number] = None  # nor will it be possible at the next step
            return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_backends": {}}  # chosen anew where a copy is

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if {"update", "write"} & set(vars(cls)):
            cls._is_plain = False

    _is_plain = True  # whether a step is the one written here

    def _new_family(self, block: Block) -> Family:
        projection = self.projection
        if self.entropy is not None:
            assert isinstance(projection, Softmax)
            projection = self.entropy.projection(block, projection, self.energy)
        form: Form = self.form if self.auxiliary else "line" if block.d == 2 else "planes"
        return family_of(block, projection, form, self.spacing(block))
