"""Classes: one for each input, or the next token of a text."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.config.settings import Fraction, Positive, configurable
from mrfquant.errors import BadInput
from mrfquant.metric import LOSS, TOP1, Metric
from mrfquant.objectives.base import Objective

TOP5 = Metric("top5", "top-5", higher=True, unit="%", digits=2)
NLL = Metric("nll", "NLL", higher=False)
ECE = Metric("ece", "calibration error", higher=False)


@configurable
class CrossEntropy(Objective):
    """Logits (b, classes) against the numbers of the classes (b,), judged by top-1 and top-5 accuracy.

    Args:
        label_smoothing: share of the target spread evenly over the classes.
        temperature: divides the logits, which are large in a network of weights -1 and 1; accuracies are the same.
    """

    metrics = (TOP1, TOP5, LOSS)
    scores = (TOP1, NLL, ECE)

    def __init__(self, label_smoothing: Fraction = 0.0, temperature: Positive = 1.0) -> None:
        self.label_smoothing, self.temperature = label_smoothing, temperature

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_logits(outputs, targets)
        logits = self._logits(outputs).flatten(0, -2)  # of tokens, too
        return functional.cross_entropy(logits, targets.flatten(), label_smoothing=self.label_smoothing)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits = self._logits(outputs).float()
        first = logits.argmax(1) == targets  # of equal logits the first, which topk does not promise
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        among = first | (best == targets[:, None]).any(1)
        loss = functional.cross_entropy(logits, targets, reduction="sum")
        return torch.stack([first.sum(), among.sum(), loss, loss.new_tensor(len(targets))])

    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        first, among, loss, count = sums
        return {"top1": 100 * (first / count), "top5": 100 * (among / count), "loss": loss / count}

    def predictions(self, outputs: Tensor) -> Tensor:
        return self._logits(outputs).float().softmax(1)

    def score(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        """Accuracy in percent, negative log-likelihood, expected calibration error over 15 bins."""
        return {
            "top1": 100 * (predictions.argmax(1) == targets).sum().item() / len(targets),
            "nll": functional.nll_loss(predictions.clamp(min=1e-12).log(), targets).item(),
            "ece": calibration_error(predictions, targets).item(),
        }

    def _logits(self, outputs: Tensor) -> Tensor:
        return outputs if self.temperature == 1 else outputs / self.temperature


def check_logits(outputs: Tensor, targets: Tensor) -> None:
    """Refuse outputs and targets that are no logits and numbers of classes."""
    if outputs.dim() != targets.dim() + 1 or outputs.shape[:-1] != targets.shape or targets.is_floating_point():
        raise BadInput(
            f"the network gives outputs of shape {tuple(outputs.shape)} for {str(targets.dtype).removeprefix('torch.')}"
            f" targets of shape {tuple(targets.shape)}; this objective needs a logit for every class of each target:"
            " set Experiment.objective to one that fits the data"
        )


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """Return the mean distance of confidence from accuracy within bins of confidence, which hold their lower end."""
    confidence, guess = (found.cpu() for found in probabilities.max(1))  # not every device has float64
    inner = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    excess = confidence.double() - (guess == labels.cpu()).double()
    sums = excess.new_zeros(bins).index_add_(0, torch.bucketize(confidence, inner, right=True), excess)
    return sums.abs().sum() / len(labels)


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
