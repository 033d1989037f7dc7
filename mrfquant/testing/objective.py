"""The contract of an objective."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mrfquant.objectives import Objective
from mrfquant.testing.contract import Contract


class ObjectiveContract(Contract):
    """Subclass it in a test file, with the objective and a batch that it fits:

        class TestMine(ObjectiveContract):
            part = MyObjective
            outputs, targets = torch.randn(40, 3), torch.randint(3, (40,))

    Attributes:
        outputs: a network's outputs for a batch of at least four examples.
        targets: the targets of the same batch.
    """

    outputs: ClassVar[Tensor]
    targets: ClassVar[Tensor]

    def build(self, **settings: Any) -> Objective:
        return self.part(**settings)

    def make(self) -> Objective:
        """Build the objective with the settings to be tested."""
        return self.build(**self.settings)

    def test_the_loss_is_a_finite_number_with_a_gradient(self) -> None:
        outputs = self.outputs.clone().requires_grad_()
        loss = self.make().loss(outputs, self.targets)
        assert loss.shape == ()
        assert loss.isfinite()
        loss.backward()
        assert outputs.grad is not None
        assert outputs.grad.isfinite().all()
        assert outputs.grad.any()

    def test_following_the_gradient_lowers_the_loss(self) -> None:
        outputs, objective = self.outputs.clone().requires_grad_(), self.make()
        before = objective.loss(outputs, self.targets)
        (gradient,) = torch.autograd.grad(before, outputs)
        step = 1e-3 * before.item() / gradient.square().sum().item()
        assert objective.loss(outputs - step * gradient, self.targets) < before

    def test_sums_of_batches_add_up(self) -> None:
        objective = self.make()
        whole = objective.sums(self.outputs, self.targets)
        parts = [objective.sums(o, t) for o, t in zip(self.outputs.split(3), self.targets.split(3), strict=True)]
        total = torch.stack(parts).sum(0)
        torch.testing.assert_close(total, whole)
        assert objective.figures(total.tolist()) == pytest.approx(objective.figures(whole.tolist()), rel=1e-5)

    def test_there_is_a_figure_for_every_metric(self) -> None:
        objective = self.make()
        figures = objective.figures(objective.sums(self.outputs, self.targets).tolist())
        assert {metric.name for metric in objective.metrics} == figures.keys()
        assert all(isinstance(value, float) for value in figures.values())

    def test_predictions_are_scored_by_what_the_objective_says(self) -> None:
        objective = self.make()
        predictions = objective.predictions(self.outputs)
        scores = objective.score(predictions, self.targets)
        assert {metric.name for metric in objective.scores} == scores.keys()
        figures = objective.figures(objective.sums(self.outputs, self.targets).tolist())
        for name in scores.keys() & figures.keys():
            assert scores[name] == pytest.approx(figures[name], rel=1e-4), name

    def test_predictions_may_be_averaged(self) -> None:
        objective = self.make()
        predictions = objective.predictions(self.outputs)
        mean = (predictions + predictions.flip(0)) / 2
        assert all(abs(value) < float("inf") for value in objective.score(mean, self.targets).values())
