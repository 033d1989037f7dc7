"""Accuracy and loss of a network on a split of the data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mrfquant.data import Dataset, Split, evaluation_batches


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: Split,
    batch_size: int = 1000,
    forward: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """Top-1 and top-5 accuracy in percent and mean cross-entropy, in evaluation mode, without augmentation.

    Args:
        model: the network, put back into the mode it was in.
        forward: what to call in its place, for example the compiled network.
    """
    forward = forward or model
    training = model.training
    model.eval()
    correct = torch.zeros(2, dtype=torch.int64, device=split.labels.device)
    loss = torch.zeros((), dtype=torch.float64, device=split.labels.device)
    for images, labels in evaluation_batches(split, batch_size, dataset.mean, dataset.std):
        logits = forward(images).float()
        loss += functional.cross_entropy(logits, labels, reduction="sum")
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        correct += torch.stack([hits[:, 0].sum(), hits.sum()])
    model.train(training)
    top1, top5 = (100 * correct / len(split)).tolist()  # the only host-device sync
    return {"top1": top1, "top5": top5, "loss": loss.item() / len(split)}
