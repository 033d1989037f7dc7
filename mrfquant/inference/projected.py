"""Gradient descent on auxiliary variables that a projection takes to the simplex.

The solvers of proximal.py take the step of Theorem 3.1's form,

    u^{k+1} = argmin over u in the simplexes of  eta E^k(u) - <u^k, u> - H(u) / beta

with a projection in the place of the argmin: softmax for the entropy H, sparsemax for the squared norm, hardmax for
neither. What is descended is either E(P(beta ũ)) on stored auxiliary variables ũ (Algorithm 1) or E itself on u, which
is projected right after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies import Energy
from mrfquant.energies.base import Means
from mrfquant.errors import BadInput
from mrfquant.inference.base import Inference, OptimizerRecipe
from mrfquant.inference.entropies import Entropy
from mrfquant.inference.one_pass import rule_of
from mrfquant.inference.ternary import EVEN, TernaryMeans
from mrfquant.kernels import dispatch
from mrfquant.labelling import Block, Labelling
from mrfquant.projections import Line, Projection, Softmax
from mrfquant.projections.line import PART
from mrfquant.schedules import Geometric, GeometricTo, Schedule

REACH = 0.2  # of a line, for random variables at beta 1: as far as steps move them within a run, for any levels


def auxiliary_gradient(
    energy: Energy,
    projection: Projection,
    block: Block,
    u: Tensor,
    aux: Tensor,
    beta: float,
    line: Line | None = None,
    spread: float | None = None,
    means: Means | None = None,
) -> Tensor:
    """The gradient of E^k(P(beta ũ)) with respect to ũ at u = P(beta ũ). May overwrite `block.g` and planes u.

    Args:
        energy: E^k.
        projection: P.
        block: whose weights are u q.
        u: in the block's form; t for the points of a line.
        aux: ũ.
        beta: the inverse temperature.
        line: of a block that is on one.
        spread: beta in u = P(beta ũ), if it is another than in the product.
        means: u as a function of the weights, where that is known.
    """
    g, costs = energy.weight_gradient(block), energy.label_costs(block)
    if means is not None and (g is None or costs is not None):
        g, costs = energy.mean_gradient(block, means), None
    one_number = block.is_pair or line is not None
    if g is None or (costs is not None and one_number):
        if line is not None:
            u = projection.planes(line.planes(aux), beta if spread is None else spread)
            return projection.line_planes_vjp(u, energy.gradient(block, u), beta, aux, line)
        vjp = projection.pair_vjp if block.is_pair else projection.planes_vjp
        return vjp(u, energy.gradient(block, u), beta, aux)
    # The same in the place of g and u: no new tensor of their size. w is taken for u q.
    g = g if block.scale is None else g.mul_(block.scale)
    if one_number:
        delta = g if block.levels.half_gap == 1 else g.mul_(block.levels.half_gap)
        return projection.line_vjp(u, delta, beta, aux, line) if line else projection.pair_vjp(u, delta, beta, aux)
    if costs is not None:
        return projection.unary_vjp(u, block.centred_q, g, block.parts, costs, beta, aux)
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
    """PROJ: the step that the solvers of proximal.py share, with any projection; each of them is one.

    Args:
        projection: the map from auxiliary variables to u, as @Softmax().
        beta: by default it grows to 1,000 over the steps that `prepare` tells, which decides 98 % of the labels or more
            (MD's to 10,000; without auxiliary variables to 10, PGD's to 1.2); if it tells none, by 1.02 (PGD 1.01)
            every 100 steps.
        auxiliary: keep auxiliary variables and descend through the projection's Jacobian, or update u itself.
        entropy: what u stands for, for the projection softmax only; factorised by default.
    """

    method = "PROJ"
    by_weight = True

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
        beta = beta or DefaultAnnealing(1.02, 1e3 if auxiliary else 10.0)
        several = [block for block in labelling.blocks if not block.is_pair]
        on_line = [block for block in several if auxiliary and block.form == "line"]
        self._lines = {b.number: Line(b.q, self.spacing(b, labelling.start, beta(0, None))) for b in on_line}
        ternary = [part for part in labelling.parts if part.number in self._lines]
        self._ternary = {
            part.number: TernaryMeans(part, line)
            for part in ternary
            if (line := self._lines[part.number]).levels == EVEN
        }
        # u of every block that is kept as planes; a pair's u can be read off the weights, that of a line is computed
        # where it is asked for. The gradient is built in its place, since u is not needed any more once it is known.
        kept = [part for part in labelling.parts if not part.is_pair and part.number not in self._lines]
        self._planes = {part.number: part.w.new_empty(part.d, part.m) for part in kept}
        super().__init__(labelling, optimizer, beta, energy)

    def spacing(self, block: Block, start: str, beta: float) -> float:
        """Of the levels on a line, see `Line`.

        From a random start, the variables are small numbers; from weights, u is a normal distribution around them,
        whose mean they are if its deviation is half the distance of the levels.

        Args:
            block: the levels.
            start: that of the labelling.
            beta: the first one.
        """
        return (REACH / (block.d - 1) if start == "random" else 1.0) / beta

    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        if (line := self._lines.get(block.number)) is not None:
            return self._spread(block, draw(), line.spacing * line.top)
        if block.is_pair:
            aux = draw()
        else:
            aux = block.w.new_empty(block.d, block.m)
            for plane in aux:
                plane.copy_(draw())  # one after the other: memory for one draw
        if self.auxiliary:
            return aux
        projection = self.projection_of(block)
        return self._in_aux_form(block, (projection.pair if block.is_pair else projection.planes)(aux, self.beta))

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        if (line := self._lines.get(block.number)) is not None:
            return self.projection.line_start(block.mean_around(w), line, self.beta)
        u = block.around(w)
        if not self.auxiliary:
            return self._in_aux_form(block, u)
        return (self.projection.pair_start if block.is_pair else self.projection.planes_start)(u, self.beta)

    def gradient(self, block: Block, x: Tensor) -> Tensor | None:
        if self.auxiliary:
            u = self._planes[block.number] if block.number in self._planes else block.mean_of_weights()
            how = (self.projection_of(block), block, u, x, self.product_beta, self._lines.get(block.number), self.beta)
            return auxiliary_gradient(self.energy, *how, self._means(block))
        return self._on_variables(block, x)

    def project(self, block: Block, x: Tensor) -> None:
        planes = self._planes.get(block.number)
        if self.auxiliary and planes is not None:
            self.projection_of(block).weights(x, block.q, self.beta, planes, block.w)
            block.apply_scale()
            return
        u = self._u_of(block, x)
        if not self.auxiliary:
            x.copy_(self._in_aux_form(block, u))
        (block.write_mean if planes is None else block.write)(u)  # comes last: t lies where the weights go

    @property
    def product_beta(self) -> float:
        """Beta in the product with the Jacobian."""
        return self.beta

    def step_at_once(self, block: Block, x: Tensor) -> bool:
        tensors = [tensor for tensor in (x, block.g, block.w, block.scale) if tensor is not None]
        if not self._plain or block.number in self._planes or not dispatch.usable(*tensors):
            return False
        assert isinstance(self.projection, Softmax)
        line = self._lines.get(block.number)
        factors = self.projection.mean_factors(self.product_beta, line)
        g, costs = self.energy.weight_gradient(block), self.energy.label_costs(block)
        if g is None and factors is not None and (means := self._means(block)) is not None:
            g, costs = self.energy.mean_gradient(block, means), None
        if g is None or factors is None or (rule := rule_of(self.optimizer, x)) is None:
            return False
        on_mean = dispatch.NO_COSTS
        if costs is not None:
            on_mean = self.projection.mean_costs(costs, block.parts, self.beta, line)
        how = self.projection.mean_kernel(self.schedule(self.iteration + 1, self.budget), line)
        levels = (block.levels.middle, block.levels.half_gap)
        dispatch.step(x, g, block.w, block.scale, levels, factors, rule, how, on_mean)  # clears g
        if g is not block.g:
            block.g.zero_()
        return True

    def _means(self, block: Block) -> Means | None:
        """u as a function of the weights, where there is a fast way from one to the other."""
        if self.entropy is not None or type(self.projection) is not Softmax:
            return None
        means = self._ternary.get(block.number)
        return None if means is None else means.at(self.beta)

    @property
    def _plain(self) -> bool:
        """Whether a step is the one written here, for softmax."""
        own = all(getattr(type(self), name) is getattr(ProjectedInference, name) for name in ("gradient", "project"))
        return own and self.auxiliary and self.entropy is None and type(self.projection) is Softmax

    def labels(self, block: Block, x: Tensor) -> Tensor:
        if self.entropy is not None:
            return block.likeliest(self.marginals(block, x))
        line = self._lines.get(block.number)
        return block.likeliest(x) if line is None else line.labels(x)

    def settings(self) -> dict[str, float]:
        return super().settings() | ({"beta": self.beta} if self.relaxed else {})

    def restore(self, block: Block, x: Tensor) -> None:
        if (planes := self._planes.get(block.number)) is not None:
            if self.auxiliary:  # by the operations of `project`, so that it is the same u to the bit
                self.projection_of(block).weights(x, block.q, self.beta, planes, torch.empty_like(block.w))
            else:
                planes.copy_(x)

    def marginals(self, block: Block, x: Tensor) -> Tensor:
        if (line := self._lines.get(block.number)) is not None:
            return self.projection_of(block).planes(line.planes(x), self.beta)
        return block.mean_of_weights() if block.is_pair else self._planes[block.number]

    def marginal_parts(self, block: Block, x: Tensor) -> Iterator[Tensor]:
        if block.number not in self._lines or self.entropy is not None:
            yield self.marginals(block, x)
        else:
            for part in x.split(PART):
                yield self.marginals(block, part)

    def projection_of(self, block: Block) -> Projection:
        """The map from the auxiliary variables of a block to its u."""
        if self.entropy is None:
            return self.projection
        assert isinstance(self.projection, Softmax)
        return self.entropy.projection(block, self.projection, self.energy)

    def _on_variables(self, block: Block, x: Tensor) -> Tensor:
        """The energy's gradient, as one on variables that are moved without a Jacobian."""
        line, g = self._lines.get(block.number), self.energy.weight_gradient(block)
        if line is not None and g is not None and self.energy.label_costs(block) is None:
            return (g if block.scale is None else g * block.scale) * (block.levels.half_gap / line.top)
        u = self.marginals(block, x)
        g = self.energy.gradient(block, u)
        if line is not None:
            return line.slope(x, u, g).div_(line.top)
        return g if block.is_pair else g.sub_(g.mean(0))

    def check_parts(self) -> None:
        super().check_parts()
        if self.entropy is not None:
            raise BadInput(f"{type(self.entropy).__name__} works on whole layers, which Labelling.shard cuts: drop one")

    def _u_of(self, block: Block, x: Tensor) -> Tensor:
        """u of the variables; t, in the place of the weights, where these have one number each."""
        projection = self.projection_of(block)
        if (planes := self._planes.get(block.number)) is not None:
            return projection.planes(x, self.beta, out=planes)
        if (line := self._lines.get(block.number)) is not None:
            return projection.line(x, line, self.beta, out=block.w)
        return projection.pair(x, self.beta, out=block.w)

    def _spread(self, block: Block, x: Tensor, reach: float) -> Tensor:
        """Random weights as far as the levels of a line reach, in place: small ones would all have the same label."""
        for name in self.labelling.names_in(block):
            first, last = (place - block.start for place in self.labelling.labelled.spans[name])
            part = x[first:last]
            part.mul_(reach / part.abs().max().clamp(min=torch.finfo(x.dtype).tiny))
        return x

    @staticmethod
    def _in_aux_form(block: Block, u: Tensor) -> Tensor:
        """u where auxiliary variables are expected: ã = (u_2 - u_1) / 2 is half of t."""
        return u / 2 if block.is_pair else u.clone()
