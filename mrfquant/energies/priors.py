"""Priors on labels: what a label costs, whatever the loss says.

A prior is E^k(u) = sum over the weights j of <c_l, u_j>, with costs c_l (d,) of the labels for every parameter l, the
same for all weights of it. It is linear in u, so its mean-field form is exact, and it goes into the product with the
gradient on the weights at next to no cost (`Gradient.costs`). The costs are constants, or those of a function of
the present labelling, linearised at the start of a step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mrfquant.config.settings import Count, configurable
from mrfquant.energies.base import Distributions, Energy
from mrfquant.errors import BadInput, BadSetting
from mrfquant.families import Distribution, Gradient
from mrfquant.labelling import Block, Labelling

Which = str | Sequence[str] | Callable[..., Any]


class Prior(Energy):
    """The base: a subclass says the costs of a block.

    Args:
        which: the parameters whose labels it is about: patterns of names, or what `Labelling.which` takes.
    """

    def __init__(self, which: Which = "everything") -> None:
        self.which = which

    def attach(self, labelling: Labelling) -> None:
        chosen = labelling.select(self.which, f"{type(self).__name__}.which")
        self.blocks = labelling.blocks
        self._chosen = {b.start: b.q.new_tensor([[n in chosen] for n in labelling.names_in(b)]) for b in self.blocks}

    @abstractmethod
    def costs(self, block: Block) -> Tensor:
        """Return the costs of the labels for each parameter of a block: (parameters, d), or (d,) for all of them."""

    def value(self, p: Distribution) -> Tensor:
        return (p.block.repeat_per_weight(self._chosen_costs(p.block).T) * p.probabilities()).sum()

    def gradient(self, p: Distribution) -> Gradient:
        return Gradient(costs=self._chosen_costs(p.block))

    def _chosen_costs(self, block: Block) -> Tensor:
        return self._chosen[block.start] * self.costs(block)


@configurable
class LabelPrior(Prior):
    """A cost for every label: {0: -1.0} makes networks sparse, [1.0, 0.0, 1.0] does the same for three levels.

    Args:
        costs: of the levels by their value, 0 for others; or of all of them, the lowest level first.
        which: as of `Prior`.
    """

    def __init__(self, costs: Mapping[float, float] | Sequence[float], which: Which = "everything") -> None:
        super().__init__(which)
        self.given = costs
        if not all(math.isfinite(c) for c in (costs.values() if isinstance(costs, Mapping) else costs)):
            raise BadSetting("LabelPrior.costs", costs, "finite numbers")

    def attach(self, labelling: Labelling) -> None:
        super().attach(labelling)
        self._costs = {b.start: b.q.new_tensor(self._costs_by_label(b.levels.values)) for b in self._chosen_blocks()}
        levels = {level for block in self._chosen_blocks() for level in block.levels.values}
        if isinstance(self.given, Mapping) and (unknown := self.given.keys() - levels):
            raise BadInput(f"LabelPrior.costs has a cost of {min(unknown):g}, the levels are {sorted(levels)}")

    def costs(self, block: Block) -> Tensor:
        return self._costs.get(block.start, torch.zeros_like(block.q))

    def _chosen_blocks(self) -> list[Block]:
        return [block for block in self.blocks if self._chosen[block.start].any()]

    def _costs_by_label(self, levels: Sequence[float]) -> list[float]:
        if isinstance(self.given, Mapping):
            return [float(self.given.get(level, 0.0)) for level in levels]
        if len(self.given) != len(levels):
            raise BadInput(f"LabelPrior.costs has {len(self.given)} costs for {len(levels)} levels: give one for each")
        return list(map(float, self.given))


@configurable
class CodeLength(Prior):
    """The bits that an entropy coder needs for the labels, m H(s) for each parameter of m weights.

    s (parameters, d) is the share that each label has of a parameter's weights under u. It is counted anew every
    `interval` steps, half a weight of each label added, so that none is 0. The derivative is the length of a label's
    code, -log2 s_λ (and a constant): a label that is rare costs more. The value is in bits.

    Args:
        which: as of `Prior`.
        interval: steps between two counts of labels.
    """

    def __init__(self, which: Which = "everything", interval: Count = 50) -> None:
        super().__init__(which)
        self.interval = interval
        self._begun = 0
        self._shares: dict[int, Tensor] = {}

    def attach(self, labelling: Labelling) -> None:
        super().attach(labelling)
        self._shares = {b.start: b.q.new_full((len(b.parameter_sizes), b.d), 1 / b.d) for b in self.blocks}

    def begin_step(self, iteration: int, distributions: Distributions) -> None:
        if self._begun % self.interval == 0:
            if (found := distributions()) is None:
                raise BadInput("CodeLength counts labels by their distribution, and this solver has none")
            for p in found:
                self._shares[p.block.start] = shares_of(p)
        self._begun += 1

    def costs(self, block: Block) -> Tensor:
        return -self._shares[block.start].log2()

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self._begun, "shares": self._shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun = state["begun"]
        self._shares = {start: shares.to(self._shares[start]) for start, shares in state["shares"].items()}


def shares_of(p: Distribution) -> Tensor:
    """Return the share of each label in each parameter of a block, half a weight of each added: (parameters, d)."""
    parts, d = p.probabilities().split(p.block.parameter_sizes, 1), p.block.d
    return torch.stack([(part.sum(1) + 0.5) / (part.shape[1] + d / 2) for part in parts])
