"""The contract of an energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mrfquant.energies import Energy
from mrfquant.labelling import Block, Labelling
from mrfquant.testing.contract import Contract

Levels = Sequence[float]


class EnergyContract(Contract):
    """What solvers rely on. Inherit it and name your energy:

        class TestMyEnergy(EnergyContract):
            part = MyEnergy

    Every check gives the energy a labelling of 60 weights, with weights and gradients of the loss in float64, and u in
    the inside of the simplexes. Override `make` for an energy that is built from a network or its labelling.
    """

    def make(self, labelling: Labelling, **settings: Any) -> Energy:
        """The energy for a labelling."""
        return self.part(**{**self.settings, **settings})

    def build(self, **settings: Any) -> Energy:
        return self.make(self.problem(self.level_sets[0])[1], **settings)

    def at_work(self, levels: Levels) -> Iterator[tuple[Energy, Block, Tensor]]:
        """The energy in the middle of a run, with and without scales: it has seen every u; one block at a time."""
        model, _ = self.problem(levels)
        for scale in ("none", "channel"):
            labelling = Labelling(model, list(levels), scale=scale)
            energy = self.make(labelling)
            us = [block.variables() for block in labelling.blocks]
            for block, u in zip(labelling.blocks, us, strict=True):
                u.copy_(in_form(block, torch.rand(block.d, block.m, dtype=u.dtype).softmax(0)))
                block.write(u)
                block.g.normal_()
            energy.begin_step(zip(labelling.blocks, us, strict=True))
            for block, u in zip(labelling.blocks, us, strict=True):
                yield energy, block, u

    def test_the_gradient_is_the_derivative_of_the_value(self, levels: Levels) -> None:
        """Along directions in which probabilities still sum to 1, by central differences."""
        for energy, block, u in self.at_work(levels):
            gradient, h = energy.gradient(block, u), 1e-5
            assert gradient.shape == u.shape, f"a gradient of shape {tuple(gradient.shape)} for u {tuple(u.shape)}"
            assert gradient.abs().max() > 0, "the gradient is zero everywhere"
            for _ in range(5):
                planes = torch.randn(block.d, block.m, dtype=u.dtype)
                direction = in_form(block, planes - planes.mean(0))
                slope = (energy.value(block, u + h * direction) - energy.value(block, u - h * direction)) / (2 * h)
                torch.testing.assert_close(slope, (gradient * direction).sum(), rtol=1e-5, atol=1e-6)

    def test_looking_at_it_changes_nothing(self, levels: Levels) -> None:
        for energy, block, u in self.at_work(levels):
            read = [block.w, block.g, u]
            before = [x.clone() for x in read]
            first = energy.gradient(block, u)
            energy.value(block, u)
            kept = first.clone()
            first.fill_(7.0)  # a new tensor: solvers write to it
            assert all(torch.equal(x, was) for x, was in zip(read, before, strict=True)), "w, g or u has changed"
            assert torch.equal(energy.gradient(block, u), kept), "the gradient is not the same the second time"

    def test_a_gradient_on_the_weights_says_the_same_as_that_on_u(self, levels: Levels) -> None:
        for energy, block, u in self.at_work(levels):
            expected = energy.gradient(block, u)
            if (g := energy.weight_gradient(block)) is not None:
                assert g.shape == block.w.shape, f"a gradient of shape {tuple(g.shape)} for weights ({block.m},)"
                torch.testing.assert_close(block.gradient_on_u(g), expected, rtol=1e-9, atol=1e-12)


def in_form(block: Block, planes: Tensor) -> Tensor:
    """Planes (d, m) in the form of the block: for two levels their difference."""
    return planes[1] - planes[0] if block.is_pair else planes
