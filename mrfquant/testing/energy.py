"""The contract of an energy."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mrfquant.energies import Energy
from mrfquant.families import Distribution, Independent
from mrfquant.labelling import Labelling
from mrfquant.testing.contract import Contract, seed_cpu

Levels = Sequence[float]


class EnergyContract(Contract):
    """Contract test of energies. Inherit it and name your energy:

        class TestMyEnergy(EnergyContract):
            part = MyEnergy

    Every check gives the energy labellings of 60 weights in float64, without scales, with them, and with two level
    sets, and lets it live through some steps of a run. Override `make` for an energy that is built from a network or
    its labelling, `problem` and `loss` for one that needs a network of another kind, `advance` for one that is driven
    in another way.

    Attributes:
        steps: that the energy has been through before those that it is looked at in.
        constant: whether the gradient is the same whatever a step brings, as that of a prior may be.
    """

    steps: ClassVar[int] = 2
    constant: ClassVar[bool] = False

    def make(self, labelling: Labelling, **settings: Any) -> Energy:
        """Build the energy for a labelling."""
        return self.part(**{**self.settings, **settings})

    def loss(self, model: Any) -> Tensor:
        """Return the loss of a step; what it draws comes from torch's generator."""
        return model.loss()

    def advance(self, energy: Energy, labelling: Labelling) -> list[Distribution]:
        """Live through one step of a run as an energy does: other weights, forward, backward, `begin_step`.

        Returns:
            The new distribution of each block, in the inside of the simplexes.
        """
        found: list[Distribution] = []
        for block in labelling.blocks:
            u = torch.rand(block.d, block.m, dtype=block.w.dtype).softmax(0)
            found.append(Independent(block, u))
            block.w.copy_(found[-1].mean())
        labelling.zero_gradient()
        self.loss(labelling.model).backward()
        labelling.collect_gradients()
        self.begin(energy, found)
        return found

    def begin(self, energy: Energy, distributions: Sequence[Distribution]) -> None:
        """Call `begin_step` as solvers do, with distributions only once they are asked for."""
        with torch.no_grad():
            energy.begin_step(0, lambda: distributions)

    def build(self, **settings: Any) -> Energy:
        return self.make(self.problem(self.level_sets[0])[1], **settings)

    def started(self, levels: Levels) -> Iterator[tuple[Energy, Labelling]]:
        """Yield the energy before its first step, on each kind of labelling; the same at every call."""
        for kind in ("plain", "scaled", "two level sets"):
            model, _ = self.problem(levels)
            first, *_ = dict(model.named_parameters())
            more = {first: list(levels), "*": [levels[0] - 1, *levels]}
            chosen = more if kind == "two level sets" else list(levels)
            labelling = Labelling(model, chosen, scale="channel" if kind == "scaled" else "none")
            energy = self.make(labelling)
            energy.attach(labelling)
            yield energy, labelling

    def at_work(self, levels: Levels) -> Iterator[tuple[Energy, Distribution]]:
        """Yield the energy in the middle of a run: one block at a time, with its present distribution."""
        for energy, labelling in self.started(levels):
            self._steps(energy, labelling)
            for p in self.advance(energy, labelling):
                yield energy, p

    def test_the_gradient_is_the_derivative_of_the_value(self, levels: Levels) -> None:
        """Along directions in which probabilities still sum to 1, by central differences."""
        for energy, p in self.at_work(levels):
            block, u, h = p.block, p.probabilities(), 1e-5
            gradient = _label_gradient(energy, p)
            assert gradient.abs().max() > 0, "the gradient is zero everywhere"
            for _ in range(5):
                planes = torch.randn(block.d, block.m, dtype=u.dtype)
                direction = planes - planes.mean(0)
                up, down = (energy.value(Independent(block, u + step * direction)) for step in (h, -h))
                slope = (up - down) / (2 * h)
                off = abs(slope - (gradient * direction).sum())
                assert off <= 1e-6 + 1e-5 * abs(slope), (
                    f"the value's slope is {slope:.6g}, the gradient is off by {off:.2g}"
                )

    def test_looking_at_it_changes_nothing(self, levels: Levels) -> None:
        for energy, p in self.at_work(levels):
            read = [p.block.w, p.block.g, p.probabilities()]
            before = [x.clone() for x in read]
            first = _label_gradient(energy, p)
            energy.value(p)
            assert all(torch.equal(x, was) for x, was in zip(read, before, strict=True)), "w, g or u has changed"
            assert torch.equal(_label_gradient(energy, p), first), "the gradient is not the same the second time"

    def test_the_parts_of_a_gradient_have_their_shapes(self, levels: Levels) -> None:
        for energy, p in self.at_work(levels):
            gradient, block = energy.gradient(p), p.block
            shapes = {"weights": (block.m,), "costs": (len(block.parameter_sizes), block.d)}
            for name, expected in {**shapes, "marginals": (block.d, block.m)}.items():
                if (part := getattr(gradient, name)) is not None:
                    assert part.shape == expected, f"{name} of shape {tuple(part.shape)}, expected {expected}"

    def test_families_may_write_to_the_gradient_on_the_weights(self, levels: Levels) -> None:
        """It may be `block.g`, which every step fills anew, and nothing else that the energy keeps."""
        for energy, p in self.at_work(levels):
            expected, kept = _label_gradient(energy, p), p.block.g.clone()
            if (g := energy.gradient(p).weights) is not None:
                g.fill_(7.0)
                p.block.g.copy_(kept)
                assert torch.equal(_label_gradient(energy, p), expected), (
                    "Gradient.weights is a tensor that the energy keeps, which families overwrite: give a copy"
                )

    def test_beginning_a_step_changes_nothing_outside_the_energy(self, levels: Levels) -> None:
        """However often it is done; without a memory it does not change the gradient either."""
        for energy, labelling in self.started(levels):
            found = self._steps(energy, labelling)
            labelling.labelled.g.normal_()
            us = {f"u {i}": p.probabilities() for i, p in enumerate(found)}
            read = {"w": labelling.labelled.w, "g": labelling.labelled.g, **us}
            before, looks = {name: x.clone() for name, x in read.items()}, []
            for _ in range(3):
                self.begin(energy, found)
                looks.append(_value_and_gradient(energy, found))
                for name, x in read.items():
                    assert torch.equal(x, before[name]), f"begin_step has changed {name}"
            if not energy.state_dict():
                same = _same(looks[0], looks[-1])
                assert same, "begun twice, a step has another value or gradient, and state_dict knows of no memory"

    def test_what_a_step_brings_is_seen_in_that_step(self, levels: Levels) -> None:
        """Check that two energies with one past give different gradients for different weights, gradients and u."""
        if self.constant:
            return
        for (one, first), (two, second) in zip(self.started(levels), self.started(levels), strict=True):
            found = []
            for energy, labelling, seed in ((one, first, 2), (two, second, 3)):
                self._steps(energy, labelling)
                seed_cpu(seed)
                found.append(_value_and_gradient(energy, self.advance(energy, labelling)))
            for block, (_, a), (_, b) in zip(first.blocks, *found, strict=True):
                stale = (a == b).reshape(-1, block.m).all(0).double().mean()
                assert stale < 0.5, (
                    f"for {stale:.0%} of the weights of a block the gradient is the same whatever the step brings: it "
                    "was computed before the step, or for another block"
                )

    def test_saved_and_loaded_it_goes_on_to_the_bit(self, levels: Levels) -> None:
        for (whole, first), (fresh, second) in zip(self.started(levels), self.started(levels), strict=True):
            self._steps(whole, first)
            if state := whole.state_dict():
                fresh.load_state_dict(_through_a_file(state))
            found = []
            for energy, labelling in ((whole, first), (fresh, second)):
                seed_cpu(2)
                found.append(_value_and_gradient(energy, self.advance(energy, labelling)))
            for (value, gradient), (expected, expected_gradient) in zip(found[1], found[0], strict=True):
                hint = "in the step after loading: what it remembers has to be in state_dict"
                assert torch.equal(gradient, expected_gradient), f"the gradient is another {hint}"
                assert torch.equal(value, expected), f"the value is another {hint}"

    def _steps(self, energy: Energy, labelling: Labelling) -> list[Distribution]:
        """Take some steps, looked at as solvers do, the same at every call; gives the last distributions."""
        seed_cpu(1)
        for _ in range(self.steps):
            found = self.advance(energy, labelling)
            _value_and_gradient(energy, found)
        return found


def _label_gradient(energy: Energy, p: Distribution) -> Tensor:
    return energy.gradient(p).on_labels(p.block)


def _value_and_gradient(energy: Energy, distributions: Sequence[Distribution]) -> list[tuple[Tensor, Tensor]]:
    """Return value and gradient of every block."""
    return [(torch.as_tensor(energy.value(p)), _label_gradient(energy, p)) for p in distributions]


def _same(xs: list[tuple[Tensor, Tensor]], ys: list[tuple[Tensor, Tensor]]) -> bool:
    return all(torch.equal(a, b) for x, y in zip(xs, ys, strict=True) for a, b in zip(x, y, strict=True))


def _through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        return torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        raise AssertionError(f"state_dict has more than tensors, numbers, text, lists and dicts: {error}") from None
