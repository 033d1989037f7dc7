"""Energies that add up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies.base import Energy, Part
from mrfquant.errors import BadSetting
from mrfquant.labelling import Block, Labelling
from mrfquant.schedules import Schedule


@configurable
class SumOf(Energy):
    """E^k(u) = sum of weight_i E_i^k(u): a model of the loss, and what else labels should be.

    A sum of `FirstOrderTaylor` and priors whose labels have costs (`LabelPrior`) steps as fast as the first alone.

    Args:
        energies: the parts, each attached to the whole labelling.
        weights: of each of them a number of at least 0, or a schedule of the iteration; all 1 by default.
    """

    def __init__(self, energies: Sequence[Energy], weights: Sequence[float | Schedule] | None = None) -> None:
        if not energies:
            raise BadSetting("SumOf.energies", [], "one energy at least")
        weights = [1.0] * len(energies) if weights is None else list(weights)
        if len(weights) != len(energies):
            raise BadSetting("SumOf.weights", weights, f"{len(energies)} of them, one for each energy")
        for weight in weights:
            if not isinstance(weight, Schedule) and not 0 <= weight < math.inf:
                raise BadSetting("SumOf.weights", weights, "finite numbers of at least 0, or schedules")
        self.energies, self.weights = list(energies), weights

    def weight(self, number: int) -> float:
        """Of the energy of that number, at the present iteration."""
        weight = self.weights[number]
        return weight(self.iteration, self.budget) if isinstance(weight, Schedule) else float(weight)

    def prepare(self, budget: int | None, temperature: float) -> None:
        super().prepare(budget, temperature)
        for energy in self.energies:
            energy.prepare(budget, temperature)

    def attach(self, labelling: Labelling) -> None:
        for energy in self.energies:
            energy.attach(labelling)

    def begin_step(self, us: Iterable[tuple[Block, Tensor | None]]) -> None:
        # Each u is computed once, when the first of them asks for it, and kept until the last has had it.
        for energy, own in zip(self.energies, itertools.tee(us, len(self.energies)), strict=True):
            energy.iteration = self.iteration
            energy.begin_step(own)

    def value(self, block: Block, u: Tensor) -> Tensor:
        return self._weighted(energy.value(block, u) for energy in self.energies)

    def values(self, block: Block, u: Tensor) -> dict[str, Tensor]:
        """Those of the energies, without their weights; names that appear twice get numbers."""
        found: dict[str, Tensor] = {}
        for energy in self.energies:
            for name, value in energy.values(block, u).items():
                name, *_ = name.split()
                taken = sum(other.split()[0] == name for other in found)
                found[f"{name} {taken + 1}" if taken else name] = value
        return found

    def gradient(self, block: Block, u: Tensor) -> Tensor:
        return self._weighted(energy.gradient(block, u) for energy in self.energies)

    def weight_gradient(self, block: Block) -> Tensor | None:
        return None if (parts := self._linear(block)) is None else _sum((weight, g) for weight, g, _ in parts)

    def label_costs(self, block: Block) -> Tensor | None:
        return None if (parts := self._linear(block)) is None else _sum((weight, costs) for weight, _, costs in parts)

    def _linear(self, block: Block) -> list[tuple[float, Tensor | None, Tensor | None]] | None:
        """Weight, gradient on the weights and costs of labels of each energy; None if one of them is more than that."""
        found = []
        for number, energy in enumerate(self.energies):
            g, costs = energy.weight_gradient(block), energy.label_costs(block)
            if g is None and costs is None:
                return None
            found.append((self.weight(number), g, costs))
        return found

    def find(self, kind: type[Part]) -> Part | None:
        found = (energy.find(kind) for energy in self.energies)
        return super().find(kind) or next((energy for energy in found if energy is not None), None)

    def state_dict(self) -> dict[str, Any]:
        states = [energy.state_dict() for energy in self.energies]
        return {"energies": states} if any(states) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for energy, saved in zip(self.energies, state["energies"], strict=True):
            if saved:
                energy.load_state_dict(saved)

    def _weighted(self, terms: Iterable[Tensor]) -> Tensor:
        total = _sum((self.weight(number), term) for number, term in enumerate(terms))
        assert total is not None
        return total


def _sum(terms: Iterable[tuple[float, Tensor | None]]) -> Tensor | None:
    """Of tensors times their weights; the tensor itself if there is one only, with the weight 1; None without any."""
    total = None
    for weight, term in terms:
        if term is not None:
            term = term if weight == 1 else term * weight
            total = term if total is None else total + term
    return total
