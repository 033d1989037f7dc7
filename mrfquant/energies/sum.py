"""Energies that add up."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.energies.base import Distributions, Energy, Term
from mrfquant.errors import BadSetting
from mrfquant.families import Distribution, Gradient
from mrfquant.labelling import Labelling
from mrfquant.schedules import Schedule


@configurable
class SumOf(Energy):
    """E^k(u) = sum of weight_i E_i^k(u): a model of the loss, and what else labels should be.

    A sum of `FirstOrderTaylor` and priors whose labels have costs (`LabelPrior`) steps as fast as the first alone.

    Args:
        energies: the terms, each attached to the whole labelling.
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
        self.energies, self.weights, self.iteration = list(energies), weights, 0

    def current_weight(self, index: int) -> float:
        """Return the scheduled weight of term `index`, at the present iteration."""
        weight = self.weights[index]
        return weight(self.iteration, self.budget) if isinstance(weight, Schedule) else float(weight)

    def prepare(self, budget: int | None, temperature: float) -> None:
        super().prepare(budget, temperature)
        for energy in self.energies:
            energy.prepare(budget, temperature)

    def attach(self, labelling: Labelling) -> None:
        for energy in self.energies:
            energy.attach(labelling)

    def begin_step(self, iteration: int, distributions: Distributions) -> None:
        self.iteration = iteration
        once = functools.cache(distributions)  # computed when the first of them asks for it
        for energy in self.energies:
            energy.begin_step(iteration, once)

    def value(self, p: Distribution) -> Tensor:
        return torch.stack([self.current_weight(i) * e.value(p) for i, e in enumerate(self.energies)]).sum()

    def values(self, p: Distribution) -> dict[str, Tensor]:
        """Return those of the terms, without their weights; names that appear twice get numbers."""
        found: dict[str, Tensor] = {}
        for energy in self.energies:
            for name, value in energy.values(p).items():
                name, *_ = name.split()
                taken = sum(other.split()[0] == name for other in found)
                found[f"{name} {taken + 1}" if taken else name] = value
        return found

    def gradient(self, p: Distribution) -> Gradient:
        total = Gradient()
        for index, energy in enumerate(self.energies):
            total = total.plus(energy.gradient(p), self.current_weight(index))
        return total

    def find(self, kind: type[Term]) -> Term | None:
        found = (energy.find(kind) for energy in self.energies)
        return super().find(kind) or next((energy for energy in found if energy is not None), None)

    def state_dict(self) -> dict[str, Any]:
        states = [energy.state_dict() for energy in self.energies]
        return {"energies": states} if any(states) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for energy, saved in zip(self.energies, state["energies"], strict=True):
            if saved:
                energy.load_state_dict(saved)
