"""Accuracy and loss of a network on a split of the data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mrfquant.compute import Team
from mrfquant.data import Dataset, Split, evaluation_batches


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: Split,
    batch_size: int = 1000,
    forward: Callable[[Tensor], Tensor] | None = None,
    team: Team | None = None,
) -> dict[str, float]:
    """Top-1 and top-5 accuracy in percent and mean cross-entropy, in evaluation mode, without augmentation.

    Args:
        model: the network, put back into the mode it was in.
        forward: what to call in its place, for example the compiled network.
        team: processes that share the work and all get the answer.
    """
    forward = model if forward is None else forward  # a compiled network has no truth value
    team = team or Team()
    training = model.training
    model.eval()
    sums = torch.zeros(3, device=split.labels.device)  # counts are exact in float32 up to 16 million
    part = Split(split.images[team.rank :: team.world_size], split.labels[team.rank :: team.world_size])
    for images, labels in evaluation_batches(part, batch_size, dataset.mean, dataset.std):
        logits = forward(images).float()
        first = logits.argmax(1) == labels  # of equal logits the first, which topk does not promise
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        among = first | (best == labels[:, None]).any(1)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([first.sum(), among.sum(), loss])
    model.train(training)
    top1, top5, loss = (team.total(sums) / len(split)).tolist()  # the only host-device sync
    return {"top1": 100 * top1, "top5": 100 * top5, "loss": loss}


@torch.inference_mode()
def predict(model: nn.Module, dataset: Dataset, split: Split, temperature: float = 1.0) -> Tensor:
    """Class probabilities of every image of a split, (n, classes); puts the network into evaluation mode."""
    model.eval()
    batches = evaluation_batches(split, 1000, dataset.mean, dataset.std)
    return torch.cat([(model(images).float() / temperature).softmax(1) for images, _ in batches])


def score(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy in percent, negative log-likelihood, expected calibration error over 15 bins."""
    return {
        "top1": 100 * (probabilities.argmax(1) == labels).double().mean().item(),
        "nll": functional.nll_loss(probabilities.clamp(min=1e-12).log(), labels).item(),
        "ece": calibration_error(probabilities, labels).item(),
    }


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """How far confidence is from accuracy: the mean over the images of the distance within their bin of confidence.

    Bins are equally wide and hold their lower end; the last holds 1, too.
    """
    confidence, guess = probabilities.max(1)
    inner = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    excess = confidence.double() - (guess == labels).double()
    sums = excess.new_zeros(bins).index_add_(0, torch.bucketize(confidence, inner, right=True), excess)
    return sums.abs().sum() / len(labels)
