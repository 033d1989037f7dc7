"""The contract of an energy."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mrfquant.energies import Energy
from mrfquant.labelling import Block, Labelling
from mrfquant.testing.contract import Contract, seeded

Levels = Sequence[float]


class EnergyContract(Contract):
    """What solvers rely on. Inherit it and name your energy:

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
        """The energy for a labelling."""
        return self.part(**{**self.settings, **settings})

    def loss(self, model: Any) -> Tensor:
        """The loss of a step; what it draws comes from torch's generator."""
        return model.loss()

    def advance(self, energy: Energy, labelling: Labelling) -> list[Tensor]:
        """One step of a run as an energy lives it: other weights, forward, backward, `begin_step`.

        Returns:
            The new u of each block, in the inside of the simplexes.
        """
        us = [
            in_form(block, torch.rand(block.d, block.m, dtype=block.w.dtype).softmax(0)) for block in labelling.blocks
        ]
        for block, u in zip(labelling.blocks, us, strict=True):
            block.write(u)
        labelling.zero_gradient()
        self.loss(labelling.model).backward()
        labelling.gradients()
        self.begin(energy, labelling, us)
        return us

    def begin(self, energy: Energy, labelling: Labelling, us: Sequence[Tensor]) -> None:
        """`begin_step` as solvers call it, with each u only once it is asked for."""
        with torch.no_grad():
            energy.begin_step((block, u) for block, u in zip(labelling.blocks, us, strict=True))

    def build(self, **settings: Any) -> Energy:
        return self.make(self.problem(self.level_sets[0])[1], **settings)

    def started(self, levels: Levels) -> Iterator[tuple[Energy, Labelling]]:
        """The energy before its first step, on each kind of labelling; the same at every call."""
        for kind in ("plain", "scaled", "two level sets"):
            model, _ = self.problem(levels)
            first, *_ = dict(model.named_parameters())
            more = {first: list(levels), "*": [levels[0] - 1, *levels]}
            chosen = more if kind == "two level sets" else list(levels)
            labelling = Labelling(model, chosen, scale="channel" if kind == "scaled" else "none")
            energy = self.make(labelling)
            energy.attach(labelling)
            yield energy, labelling

    def at_work(self, levels: Levels) -> Iterator[tuple[Energy, Block, Tensor]]:
        """The energy in the middle of a run: one block at a time, with its present u."""
        for energy, labelling in self.started(levels):
            self._steps(energy, labelling)
            us = self.advance(energy, labelling)
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
                off = abs(slope - (gradient * direction).sum())
                assert off <= 1e-6 + 1e-5 * abs(slope), (
                    f"the value's slope is {slope:.6g}, the gradient is off by {off:.2g}"
                )

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

    def test_a_gradient_on_the_weights_and_costs_of_labels_say_the_same_as_that_on_u(self, levels: Levels) -> None:
        for energy, block, u in self.at_work(levels):
            expected = energy.gradient(block, u)
            g, costs = energy.weight_gradient(block), energy.label_costs(block)
            if g is None and costs is None:
                continue
            found = torch.zeros_like(expected)
            if g is not None:
                assert g.shape == block.w.shape, f"a gradient of shape {tuple(g.shape)} for weights ({block.m},)"
                found += block.gradient_on_u(g)
            if costs is not None:
                rows = (len(block.parts), block.d)
                assert costs.shape == rows, f"costs of shape {tuple(costs.shape)} for parts and labels {rows}"
                found += in_form(block, block.each(costs.T)) / (2 if block.is_pair else 1)
            off = (found - expected).abs().max()
            assert off <= 1e-9 * (1 + expected.abs().max()), f"they are off by {off:.2g} from the gradient on u"

    def test_solvers_may_write_to_the_gradient_on_the_weights(self, levels: Levels) -> None:
        """It may be `block.g`, which every step fills anew, and nothing else that the energy keeps."""
        for energy, block, u in self.at_work(levels):
            expected, kept = energy.gradient(block, u), block.g.clone()
            if (g := energy.weight_gradient(block)) is not None:
                g.fill_(7.0)
                block.g.copy_(kept)
                assert torch.equal(energy.gradient(block, u), expected), (
                    "weight_gradient gives a tensor that the energy keeps, which solvers overwrite: give a copy"
                )

    def test_beginning_a_step_changes_nothing_outside_the_energy(self, levels: Levels) -> None:
        """However often it is done; without a memory it does not change the gradient either."""
        for energy, labelling in self.started(levels):
            us = self._steps(energy, labelling)
            labelling.labelled.g.normal_()
            read = {"w": labelling.labelled.w, "g": labelling.labelled.g, **{f"u {i}": u for i, u in enumerate(us)}}
            before, looks = {name: x.clone() for name, x in read.items()}, []
            for _ in range(3):
                self.begin(energy, labelling, us)
                looks.append(_look(energy, labelling, us))
                for name, x in read.items():
                    assert torch.equal(x, before[name]), f"begin_step has changed {name}"
            if not energy.state_dict():
                same = _same(looks[0], looks[-1])
                assert same, "begun twice, a step has another value or gradient, and state_dict knows of no memory"

    def test_what_a_step_brings_is_seen_in_that_step(self, levels: Levels) -> None:
        """Of two energies with one past, that which meets other weights, gradients and u gives another gradient."""
        if self.constant:
            return
        for (one, first), (two, second) in zip(self.started(levels), self.started(levels), strict=True):
            found = []
            for energy, labelling, seed in ((one, first, 2), (two, second, 3)):
                self._steps(energy, labelling)
                seeded(seed)
                found.append(_look(energy, labelling, self.advance(energy, labelling)))
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
                seeded(2)
                found.append(_look(energy, labelling, self.advance(energy, labelling)))
            for (value, gradient), (expected, expected_gradient) in zip(found[1], found[0], strict=True):
                hint = "in the step after loading: what it remembers has to be in state_dict"
                assert torch.equal(gradient, expected_gradient), f"the gradient is another {hint}"
                assert torch.equal(value, expected), f"the value is another {hint}"

    def _steps(self, energy: Energy, labelling: Labelling) -> list[Tensor]:
        """Some steps, looked at as solvers do, the same at every call; gives the last u of each block."""
        seeded(1)
        for _ in range(self.steps):
            us = self.advance(energy, labelling)
            _look(energy, labelling, us)
        return us


def in_form(block: Block, planes: Tensor) -> Tensor:
    """Planes (d, m) in the form of the block: for two levels their difference."""
    return planes[1] - planes[0] if block.is_pair else planes


def _look(energy: Energy, labelling: Labelling, us: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Value and gradient of every block."""
    items = zip(labelling.blocks, us, strict=True)
    return [(torch.as_tensor(energy.value(block, u)), energy.gradient(block, u)) for block, u in items]


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
