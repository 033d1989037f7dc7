"""The figures of a network on a split of the data, as its objective makes them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mrfquant.compute import Team
from mrfquant.data import Dataset, SplitName
from mrfquant.errors import BadInput
from mrfquant.objectives import CrossEntropy, Objective, outputs_of

BATCH = 1000
CPU_BATCH = 125  # activations that stay in the cache: 1.4 to 2.7 times as fast


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: SplitName,
    objective: Objective | None = None,
    forward: Callable[..., Tensor] | None = None,
    team: Team | None = None,
) -> dict[str, float]:
    """Return the objective's figures on a split, in evaluation mode, without augmentation.

    Args:
        model: the network, put back into the mode it was in.
        objective: cross-entropy by default.
        forward: what to call in its place, for example the compiled network.
        team: processes that share the work and all get the answer.
    """
    objective = objective or CrossEntropy()
    return objective.figures(sums_of(model, dataset, split, objective, forward, team)[0])


@torch.inference_mode()
def sums_of(
    model: nn.Module,
    dataset: Dataset,
    split: SplitName,
    objective: Objective,
    forward: Callable[..., Tensor] | None = None,
    team: Team | None = None,
    share: int = 1,
    others: bool = True,
) -> list[list[float]]:
    """Return the objective's sums over one batch in `share`, and over all; without `others`, the former twice."""
    forward = model if forward is None else forward  # a compiled network has no truth value
    team = team or Team()
    training = model.training
    model.eval()
    total: Tensor | None = None  # counts are exact in float32 up to 16 million
    size = CPU_BATCH if dataset.device.type == "cpu" else BATCH
    for index, (inputs, targets) in enumerate(dataset.ordered(split, size, team.rank, team.world_size)):
        chosen = index % share == 0
        if chosen or others:
            sums = objective.sums(outputs_of(forward, inputs), targets)
            both = torch.stack([sums * chosen, sums])
            total = both if total is None else total + both
    model.train(training)
    if total is None:
        raise BadInput(f"{team.world_size} processes for {dataset.size(split)} {dataset.unit} to evaluate: take fewer")
    found: list[list[float]] = team.total(total).tolist()  # the only host-device sync
    return found


@torch.inference_mode()
def predict(model: nn.Module, dataset: Dataset, split: SplitName, objective: Objective) -> tuple[Tensor, Tensor]:
    """Return predictions that may be averaged over networks, and targets; inputs of another shape are left out."""
    model.eval()
    found: list[tuple[Tensor, Tensor]] = []
    for inputs, targets in dataset.ordered(split):
        if not found or targets.shape[1:] == found[0][1].shape[1:]:
            found.append((objective.predictions(outputs_of(model, inputs)), targets))
    return torch.cat([p for p, _ in found]), torch.cat([t for _, t in found])
