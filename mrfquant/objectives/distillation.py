"""A float network as the teacher of the quantized one."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mrfquant.config.settings import Fraction, Positive, configurable
from mrfquant.objectives.base import Objective, outputs_of
from mrfquant.objectives.classification import CrossEntropy


@configurable
class Distillation(Objective):
    """Another objective's loss, mixed with the divergence from the outputs that the network gave at its start:

        (1 - share) loss + share T² KL(softmax(teacher / T), softmax(network / T))

    as in Hinton et al. (2015). The teacher is the network as the run starts it, from trained weights as a rule
    (`--weights`), in evaluation mode; it travels in the checkpoints. Networks are judged by the other objective.

    Args:
        objective: the other one; cross-entropy by default.
        share: of the teacher in the loss.
        softness: T.
        while_better: leave the teacher out of batches on which the network's own loss is lower: a teacher that was not
            trained to its end would hold the network back.
    """

    def __init__(
        self,
        objective: Objective | None = None,
        share: Fraction = 0.5,
        softness: Positive = 1.0,
        while_better: bool = False,
    ) -> None:
        self._inner = objective = objective or CrossEntropy()
        self.share, self.softness, self.while_better = share, softness, while_better
        self.metrics, self.scores, self.temperature = objective.metrics, objective.scores, objective.temperature
        self.needs_teacher = share > 0
        self.teacher: nn.Module | None = None

    @property
    def evaluated_as(self) -> Objective:
        return self._inner

    def attach(self, model: nn.Module) -> None:
        self.teacher = copy.deepcopy(model).eval().requires_grad_(False)

    def training_loss(self, outputs: Tensor, targets: Tensor, inputs: Any) -> Tensor:
        own = self._inner.training_loss(outputs, targets, inputs)
        if not self.needs_teacher:
            return own
        assert self.teacher is not None, "attach it first"
        with torch.no_grad():
            taught = outputs_of(self.teacher, inputs).float()
            share: float | Tensor = self.share
            if self.while_better:
                share = share * (self._inner.training_loss(taught, targets, inputs) < own)
        logs = (outputs.float() / self.softness).log_softmax(-1).flatten(0, -2)
        aims = (taught / self.softness).softmax(-1).flatten(0, -2)
        divergence = functional.kl_div(logs, aims, reduction="batchmean")
        return (1 - share) * own + share * self.softness**2 * divergence

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._inner.loss(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._inner.sums(outputs, targets)

    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        return self._inner.figures(sums)

    def predictions(self, outputs: Tensor) -> Tensor:
        return self._inner.predictions(outputs)

    def score(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        return self._inner.score(predictions, targets)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.teacher is not None and "teacher" in state:
            self.teacher.load_state_dict(state["teacher"])
