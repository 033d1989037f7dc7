"""The next token of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.config.settings import Fraction, configurable
from mrfquant.metric import LOSS, Metric
from mrfquant.objectives.base import Objective
from mrfquant.objectives.classification import check_logits

PERPLEXITY = Metric("perplexity", "perplexity", higher=False, digits=3)
BITS = Metric("bits", "bits per token", higher=False)


@configurable
class NextToken(Objective):
    """Logits (b, t, tokens) against the tokens that follow (b, t), judged by the mean cross-entropy in nats.

    Perplexity is its exponential; bits per token, of characters bits per character, are the same in other units.

    Args:
        label_smoothing: share of the target spread evenly over the tokens, in training.
    """

    metrics = scores = (LOSS, PERPLEXITY, BITS)

    def __init__(self, label_smoothing: Fraction = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_logits(outputs, targets)
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), label_smoothing=self.label_smoothing)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten(), reduction="sum")
        return torch.stack([loss, loss.new_tensor(targets.numel())])

    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        return _figures(sums[0] / sums[1])

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.float().softmax(-1)

    def score(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        logs = predictions.flatten(0, -2).clamp(min=1e-12).log()
        return _figures(functional.nll_loss(logs, targets.flatten()).item())


def _figures(loss: float) -> dict[str, float]:
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bits": loss / math.log(2)}
