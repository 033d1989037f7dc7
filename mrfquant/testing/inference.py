"""The contract of a solver."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.inference import Inference
from mrfquant.labelling import Labelling
from mrfquant.testing.contract import Contract, Quadratic

Levels = Sequence[float] | None


class InferenceContract(Contract):
    """Contract test of solvers. Inherit it and name your solver:

        class TestMySolver(InferenceContract):
            part = MySolver
            settings = {"damping": 0.9}  # if the defaults are not good for 200 steps

    Every check minimises a convex toy loss over the labels of 60 weights, with `optimizer` in `steps` steps.
    Variables must have the weights along their last dimension, as (m,) or (k, m). A solver that computes with weights
    that it draws says so by `samples = True`: its weights need not be the mean of its distribution then.
    """

    supplied = ("labelling", "optimizer")
    steps: ClassVar[int] = 200
    # Share of the rounded network's loss that may be left in the end. Not 0: a first-order method that holds a middle
    # level's weight cannot tell that level from a mixture of those around it.
    left: ClassVar[float] = 0.3

    def optimizer(self, tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Build the optimizer of the variables."""
        return torch.optim.Adam(tensors, lr=0.05)

    def make(self, labelling: Labelling, **settings: Any) -> Inference:
        """Build the solver on a labelling."""
        return self.part(labelling, self.optimizer, **{**self.settings, **settings})

    def build(self, **settings: Any) -> Inference:
        return self.make(self.problem(self.level_sets[0])[1], **settings)

    def solver(self, levels: Levels, **problem: Any) -> tuple[Quadratic, Inference]:
        """Build a toy network and the solver at its start, the same at every call."""
        model, labelling = self.problem(levels, **problem)
        inference = self.make(labelling)
        inference.budget = self.steps
        return model, inference

    def run(self, model: Quadratic, inference: Inference, steps: int) -> list[float]:
        """Take steps; gives the loss before each."""
        losses = []
        for _ in range(steps):
            loss = model.loss()
            loss.backward()
            inference.step()
            losses.append(loss.item())
        return losses

    def test_the_loss_of_the_rounded_network_falls_on_a_convex_problem(self, levels: Levels) -> None:
        model, inference = self.solver(levels)
        with inference.rounded():
            start = model.loss().item()
        self.run(model, inference, self.steps)
        with inference.rounded():
            end = model.loss().item()
        assert end <= self.left * start, f"{end / start:.0%} of the loss is left after {self.steps} steps"

    def test_rounded_weights_are_exactly_on_their_levels(self, levels: Levels) -> None:
        model, inference = self.solver(levels)
        self.run(model, inference, 10)
        for name, w in self._rounded(model, inference).items():
            allowed = self._scaled(inference.labelling, name, levels or w.unique().tolist())
            assert (w == allowed).any(0).all(), f"{name} is rounded to {sorted(w.unique().tolist())}"

    def test_rounding_ends_with_its_block(self, levels: Levels) -> None:
        model, inference = self.solver(levels)
        self.run(model, inference, 10)
        before = {name: w.detach().clone() for name, w in model.named_parameters()}
        self._rounded(model, inference)
        for name, w in model.named_parameters():
            assert torch.equal(before[name], w), f"{name} is not what it was before it was rounded"

    def test_weights_lie_between_the_levels_and_are_their_mean(self, levels: Levels) -> None:
        self._check_weights(*self.solver(levels))

    def test_weights_have_the_scales_of_the_labelling(self, levels: Levels) -> None:
        """With levels so close to 0 that weights without their scale lie beyond them."""
        if levels is not None:
            settings = {"scale": 0.01, **self.labelling}
            self._check_weights(*self.solver(levels, **settings))

    def _check_weights(self, model: Quadratic, inference: Inference) -> None:
        for _ in range(5):
            self.run(model, inference, 10)
            for block, x in inference.items():
                scale = torch.ones_like(block.w) if block.scale is None else block.scale
                hint = "" if block.scale is None else ": are they multiplied by block.scale?"
                assert (block.q[0] * scale <= block.w).all(), f"a weight lies below the lowest level{hint}"
                assert (block.w <= block.q[-1] * scale).all(), f"a weight lies above the highest level{hint}"
                if (p := inference.distribution(block, x)) is None or inference.samples:
                    continue
                torch.testing.assert_close(p.mean(), block.w, atol=1e-6, rtol=0, msg="w is not the mean of the labels")
                assert (p.entropy() >= -1e-9).all(), "the entropy of a weight is below 0"

    def test_saved_and_loaded_it_goes_on_to_the_bit(self, levels: Levels) -> None:
        model, whole = self.solver(levels)
        expected = self.run(model, whole, 30)
        model, first = self.solver(levels)
        self.run(model, first, 13)
        file, drawn = io.BytesIO(), torch.get_rng_state()
        torch.save(first.state_dict(), file)
        file.seek(0)
        model, second = self.solver(levels)
        torch.set_rng_state(drawn)
        second.load_state_dict(torch.load(file, weights_only=True))
        hint = "what the solver keeps besides its variables has to be in own_state"
        assert self.run(model, second, 17) == expected[13:], f"the losses after loading are others: {hint}"
        assert _same(second.variables, whole.variables), "the variables after loading are others"
        assert second.diagnostics() == whole.diagnostics(), "the diagnostics after loading are others"

    def test_the_order_of_the_parameters_plays_no_role(self, levels: Levels) -> None:
        if self.part.samples:
            return  # what it draws depends on the order
        first, one = self.solver(levels)
        second, two = self.solver(levels, order=tuple(reversed(Quadratic.SHAPES)))
        solution = one.solution()
        solution["w"], solution["free"] = (
            self._reordered(solution[key], getattr(one.labelling, part), getattr(two.labelling, part))
            for key, part in (("w", "labelled"), ("free", "free"))
        )
        solution["variables"] = [
            self._reordered(x, one.labelling.labelled, two.labelling.labelled) for x in solution["variables"]
        ]
        two.load_solution(solution)
        for model, inference in ((first, one), (second, two)):
            self.run(model, inference, 20)
        for name, w in first.named_parameters():
            torch.testing.assert_close(second.get_parameter(name), w, atol=1e-9, rtol=0)

    def test_the_state_of_a_smaller_network_is_refused(self, levels: Levels) -> None:
        state = self.solver(levels)[1].state_dict()
        for key in ("w", "free"):
            state[key] = state[key][:-1]
        state["variables"] = [x[..., :-1] for x in state["variables"]]
        with pytest.raises(BadInput, match="does not fit"):
            self.solver(levels)[1].load_state_dict(state)

    def test_a_labelling_without_levels_is_refused(self) -> None:
        _, labelling = self.problem(None)
        with pytest.raises(BadInput, match="needs levels"):
            self.make(labelling)

    @staticmethod
    def _scaled(labelling: Labelling, name: str, levels: Sequence[float]) -> torch.Tensor:
        """Return every level of a parameter, times its scales: (d, *shape)."""
        w = labelling.model.get_parameter(name)
        scale = torch.ones_like(w)
        if labelling.scale is not None and name in labelling.labelled.spans:
            scale = labelling.labelled.view(name, labelling.scale)
        return torch.stack([level * scale for level in levels])

    @staticmethod
    def _rounded(model: Quadratic, inference: Inference) -> dict[str, torch.Tensor]:
        with inference.rounded():
            return {name: w.detach().clone() for name, w in model.named_parameters()}

    @staticmethod
    def _reordered(x: torch.Tensor, source: Any, target: Any) -> torch.Tensor:
        """Return values along the last dimension in the order of another labelling of the same parameters."""
        return torch.cat([x[..., slice(*source.spans[name])] for name in target.spans], -1) if len(source) else x


def _same(xs: Sequence[torch.Tensor], ys: Sequence[torch.Tensor]) -> bool:
    return len(xs) == len(ys) and all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))
