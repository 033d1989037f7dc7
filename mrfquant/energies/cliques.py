"""A higher-order potential: the weights of a channel prefer to be 0 together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mrfquant.config.settings import Check, Count, configurable
from mrfquant.energies.base import Energy, Means
from mrfquant.errors import BadInput
from mrfquant.labelling import Block, Labelling
from mrfquant.labelling.flat import part_of

LEAST = 0.02  # of softness: e^-50 is what is left of a product over a clique, and float32 has it
Softness = Annotated[float, Check(lambda v: LEAST <= v < math.inf, f"a finite number of at least {LEAST}")]


@dataclass(frozen=True)
class Cliques:
    """The cliques of one labelled weight.

    Attributes:
        weight: the parameter. start: where it begins in its block. axis: the dimension along which it is cut.
        count: cliques.
    """

    weight: Tensor
    start: int
    axis: int
    count: int

    @property
    def size(self) -> int:
        """Weights of a clique."""
        return self.weight.numel() // self.count

    def read(self, of: Tensor) -> Tensor:
        """The part of a block's vector (m,) that belongs to the weight: (count, size), a view if it can be one."""
        return self._view(of).reshape(self.count, -1)

    def write(self, to: Tensor, rows: Tensor) -> None:
        """Put (count, size) into the weight's part of a block's vector (m,), unless they are a view of it."""
        view = self._view(to)
        if rows.data_ptr() != view.data_ptr():
            view.copy_(rows.reshape(view.shape))

    def _view(self, of: Tensor) -> Tensor:
        return part_of(of, self.weight, self.start).movedim(self.axis, 0)


@configurable
class CliquePotts(Energy):
    """E(u) = sum over cliques of E_u[psi(K / n)],  psi(r) = (1 - exp(-r / softness)) / (1 - exp(-1 / softness)).

    K of the n weights of a clique are not 0. The cost psi is 0 for a clique that is 0 as a whole, 1 for one without a
    0, and concave between: the first weights that are not 0 cost most, the next ones next to nothing, so a channel
    pays to be 0 as a whole, or not at all. As softness goes to 0 this becomes the P^n-Potts potential (Kohli et al.,
    2007), which costs 1 unless all weights are 0; for large softness it is K / n, a cost of each weight by itself.

    Under the factorised u the expectation is exact and takes one product over the clique. With a = exp(-1 / (n
    softness)), exp(-K / (n softness)) is a^K, a product over the weights, and they are independent:

        E_u[a^K] = P = prod_j (a + (1 - a) u_j:0),
        dE / du_j:0 = -(1 - a) P / (a + (1 - a) u_j:0) / (1 - exp(-1 / softness)).

    P is at least exp(-1 / softness), however large the clique. Of P^n-Potts itself the expectation is 1 - prod_j u_j:0
    and the gradient prod_{i ≠ j} u_i:0: for hundreds of undecided weights both are beyond floats, and nothing would
    ever move; that is why there is a softness, and a least one.

    It models no loss: add it to an energy that does, `SumOf([FirstOrderTaylor(), CliquePotts()], [1.0, 0.01])`, where
    the weight is what a channel without zeros costs.

    Args:
        softness: the share of weights different from 0 at which the cost levels off.
        cliques: 'outputs' are the weights that compute a channel, 'inputs' those that read one.
        channels: neighbouring channels that form one clique, such as the outputs of an attention head.
        which: the weights with cliques: patterns of names, or what `Labelling.which` takes; of these the parameters of
            two or more dimensions. By default all but the last, whose outputs are the network's; for inputs all but
            the first.
    """

    def __init__(
        self,
        softness: Softness = 0.25,
        cliques: Literal["outputs", "inputs"] = "outputs",
        channels: Count = 1,
        which: str | Sequence[str] | Callable[..., Any] | None = None,
    ) -> None:
        self.softness, self.cliques, self.channels, self.which = softness, cliques, channels, which
        self._cliques: dict[int, list[Cliques]] = {}  # by the start of a block
        self._top = -math.expm1(-1 / softness)

    def attach(self, labelling: Labelling) -> None:
        axis = ("outputs", "inputs").index(self.cliques)
        self._cliques = {block.start: [] for block in labelling.blocks}
        for name in self._names(labelling):
            block, weight = labelling.block_of(name), labelling.labelled.parameter(name)
            if 0 not in block.levels.values:
                raise BadInput(
                    f"CliquePotts draws channels to 0, and {name} has the levels {list(block.levels.values)}: add 0 "
                    "to Labelling.levels, or leave the weight out of CliquePotts.which"
                )
            if weight.shape[axis] % self.channels:
                raise BadInput(
                    f"CliquePotts.channels = {self.channels} does not divide the {weight.shape[axis]} {self.cliques} "
                    f"of {name}: choose a divisor, or leave the weight out of CliquePotts.which"
                )
            start = labelling.labelled.spans[name][0] - block.start
            self._cliques[block.start].append(Cliques(weight, start, axis, weight.shape[axis] // self.channels))
        for found in self._cliques.values():
            found.sort(key=lambda cliques: cliques.start)

    def value(self, block: Block, u: Tensor) -> Tensor:
        if not self._cliques[block.start]:
            return u.new_zeros(())
        zero = block.probabilities(u)[_zero(block)]
        costs = [1 - self._factors(cliques, zero.clone()).prod(1) for cliques in self._cliques[block.start]]
        return torch.cat(costs).sum() / self._top

    def gradient(self, block: Block, u: Tensor) -> Tensor:
        gradient = torch.zeros_like(u)
        if self._cliques[block.start]:
            label = _zero(block)
            slope = self._slope(block, block.probabilities(u)[label].clone())
            if block.is_pair:
                return slope.mul_(0.5 if label else -0.5)
            gradient[label] = slope
        return gradient

    def mean_gradient(self, block: Block, means: Means) -> Tensor:
        if not self._cliques[block.start]:
            return torch.zeros_like(block.w)
        chance, slope = means.chance(_zero(block))
        return self._slope(block, chance).mul_(slope)

    def _slope(self, block: Block, zero: Tensor) -> Tensor:
        """dE / du_0 (m,) for u_0 (m,), in its place."""
        end = 0
        for cliques in self._cliques[block.start]:
            zero[end : cliques.start] = 0
            end = cliques.start + cliques.weight.numel()
            factors = self._factors(cliques, zero)
            products = factors.prod(1, keepdim=True).mul_(-self._share(cliques) / self._top)
            cliques.write(zero, torch.div(products, factors, out=factors))
        zero[end:] = 0
        return zero

    def _share(self, cliques: Cliques) -> float:
        """1 - a."""
        return -math.expm1(-1 / (cliques.size * self.softness))

    def _factors(self, cliques: Cliques, zero: Tensor) -> Tensor:
        """a + (1 - a) u_0: (count, size), in the place of u_0 (m,) if it can be."""
        rows, share = cliques.read(zero), self._share(cliques)
        return torch.add(rows.new_tensor(1 - share), rows, alpha=share, out=rows)

    def _names(self, labelling: Labelling) -> list[str]:
        labelled = labelling.labelled
        names = [name for name, _ in labelling.model.named_parameters() if name in labelled.spans]
        wide = [name for name in names if labelled.parameter(name).dim() > 1]
        if self.which is None:
            chosen = wide[:-1] if self.cliques == "outputs" else wide[1:]
        else:
            selected = labelling.select(self.which, "CliquePotts.which")
            chosen = [name for name in wide if name in selected]
        if not chosen:
            raise BadInput("CliquePotts finds no labelled weight with channels to remove: set CliquePotts.which")
        return chosen


def _zero(block: Block) -> int:
    """The label of the level 0."""
    return block.levels.values.index(0.0)
