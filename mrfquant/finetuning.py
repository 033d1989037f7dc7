"""From a trained network to one on levels, in one call: `finetune`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput, Diverged
from mrfquant.inference import Inference, MirrorDescent
from mrfquant.labelling import Labelling
from mrfquant.objectives import CrossEntropy, Distillation, Objective
from mrfquant.objectives.base import outputs_of
from mrfquant.schedules import CosineDecay
from mrfquant.text import aligned, duration

WARMUP = 0.1  # share of the steps in which the learning rate rises
REFRESHING = 50  # last batches from which batch norm takes the statistics of the rounded network
MOST_LISTED = 8  # levels whose shares are printed one by one
SILENCE = 2.0  # seconds between two lines of progress
Loss = Callable[[nn.Module, Any], Tensor]


@dataclass
class Finetuned:
    """The result of `finetune`.

    Attributes:
        model: the network, an ordinary one again, with every labelled weight on a level.
        labelling: its levels and scales, for `mq.pack_model`.
        before: what `evaluate` said of the float network, if it was given.
        after: what it said of the rounded one.
        losses: of the batches, one for each step.
        shares: for each labelled parameter the share of its weights with each level, the lowest first.
        refreshed: how many layers of batch norm have the statistics of the rounded network now.
    """

    model: nn.Module
    labelling: Labelling
    before: float | None = None
    after: float | None = None
    losses: list[float] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)
    refreshed: int = 0

    def __str__(self) -> str:
        rows = [["parameter", "share of weights on each level"]]
        for name, shares in self.shares.items():
            levels = self.labelling.block_of(name).levels.values
            told = "  ".join(f"{q:g}: {share:.1%}" for q, share in zip(levels, shares, strict=True))
            many = f"{len(levels)} levels, the most frequent {max(shares):.1%}"
            rows.append([name, told if len(levels) <= MOST_LISTED else many])
        lines = [aligned(rows)]
        if self.refreshed:
            lines.append(f"{self.refreshed} layers of batch norm have statistics of the rounded network")
        if self.before is not None and self.after is not None:
            lines.append(f"before {self.before:g}, after {self.after:g}")
        return "\n".join(lines)


def finetune(
    model: nn.Module,
    levels: Any,
    batches: Iterable[Any],
    loss: Loss | Objective | None = None,
    *,
    steps: int,
    lr: float,
    which: Any = "inner weights",
    scale: Any = "channel",
    solver: Callable[..., Inference] = MirrorDescent,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    evaluate: Callable[[nn.Module], float] | None = None,
    say: Callable[[str], None] | None = print,
) -> Finetuned:
    """Bring a trained network onto levels, from the weights that it has, and leave an ordinary network.

    The learning rate rises over the first tenth of the steps and falls to 0 along half a cosine; beta grows over the
    first third. In the end batch norm takes the statistics of the rounded network from the last 50 batches.

    Args:
        model: the network, on its device.
        levels: as in `Labelling`: [-1, 1], [-1, 0, 1], a mapping of patterns to levels.
        batches: to train on, begun again when they end; pairs of inputs and targets unless there is a `loss`.
        loss: of the network on a batch, a scalar, or an objective, as mq.CrossEntropy(). By default the float network
            teaches classes, by `Distillation` with a tenth of cross-entropy, on batches where it is the better one;
            tokens are learned by cross-entropy alone.
        steps: how many batches to take.
        lr: what training the float network further would take, with `optimizer`.
        which: as in `Labelling`.
        scale: as in `Labelling`.
        solver: a solver class that can start at weights.
        optimizer: called with parameters and `lr`.
        evaluate: what the network is good for, as an accuracy: called on the float and on the rounded network.
        say: gets progress, a line at a time; None for none.
    """
    if steps < 1:
        raise BadInput(f"finetune has to take {steps} steps, expected at least 1")
    say = say or (lambda line: None)
    endless, losses = _endless(batches), []
    first = next(endless)
    loss = _loss_of(model, _default_objective(first) if loss is None else loss)
    before = _evaluated(model, evaluate)
    labelling = Labelling(model, levels, which=which, scale=scale)
    inference = solver(labelling, lambda tensors: optimizer(tensors, lr=lr), start="weights")
    inference.prepare(steps)
    schedule = CosineDecay(warmup=int(WARMUP * steps))
    last: deque[Any] = deque(maxlen=REFRESHING)
    begun = told = time.monotonic()
    model.train()
    for k in range(steps):
        for group in inference.param_groups:
            group["lr"] = lr * schedule(k, steps)
        last.append(next(endless) if k else first)
        value = loss(model, last[-1])
        value.backward()
        inference.step()
        losses.append(value.detach())
        if (now := time.monotonic()) - told > SILENCE:
            told = now
            left = duration((now - begun) / (k + 1) * (steps - k - 1))
            say(f"{k + 1:,}/{steps:,}  loss {losses[-1].item():.4f}  {left} left")
    found = torch.stack(losses).tolist()
    if found[-1] != found[-1]:
        raise Diverged(f"the loss is not a number after {steps} steps: lower lr, it is {lr:g}")
    shares = _shares(inference)
    inference.finalize()
    refreshed = refresh_batch_norm(model, last, loss)
    done = Finetuned(model, labelling, before, _evaluated(model, evaluate), found, shares, refreshed)
    say(str(done))
    return done


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, batches: Iterable[Any], loss: Loss | None = None) -> int:
    """Replace the statistics of batch norm by the mean over batches, and return how many layers have them.

    Layers in evaluation mode, as frozen ones are, keep theirs. A `loss` says what the network is called on; without
    one it is the first of each batch.
    """
    kinds = nn.modules.batchnorm._BatchNorm
    layers = [m for m in model.modules() if isinstance(m, kinds) and m.track_running_stats and m.training]
    if not layers:
        return 0
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean of all batches
    for batch in batches:
        if loss is None:
            outputs_of(model, _pair(batch)[0])
        else:
            loss(model, batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return len(layers)


def _default_objective(batch: Any) -> Objective:
    targets = _pair(batch)[1]
    classes = not isinstance(targets, Tensor) or targets.dim() < 2
    return Distillation(share=0.9, softness=3.0, while_better=True) if classes else CrossEntropy()


def _loss_of(model: nn.Module, loss: Loss | Objective) -> Loss:
    """Return the loss of a batch that an objective stands for; it may keep the network as it is now."""
    if not isinstance(loss, Objective):
        return loss
    objective = loss
    objective.attach(model)

    def of_batch(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = _pair(batch)
        return objective.training_loss(outputs_of(model, inputs), targets, inputs)

    return of_batch


def _pair(batch: Any) -> tuple[Any, Any]:
    try:
        if isinstance(batch, Mapping):  # two of its keys would do
            raise TypeError
        inputs, targets = batch
    except (TypeError, ValueError):
        given = type(batch).__name__
        raise BadInput(
            f"a batch is a {given}, expected (inputs, targets): give finetune a loss(model, batch)"
        ) from None
    return inputs, targets


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise BadInput("there are no batches (any more): give a list or a DataLoader, which can begin again")


def _evaluated(model: nn.Module, evaluate: Callable[[nn.Module], float] | None) -> float | None:
    if evaluate is None:
        return None
    training = model.training
    model.eval()
    with torch.no_grad():
        found = float(evaluate(model))
    model.train(training)
    return found


@torch.no_grad()
def _shares(inference: Inference) -> dict[str, list[float]]:
    found, labelling = {}, inference.labelling
    for block, x in inference.items():
        labels = inference.labels(block, x)
        for name in labelling.names_in(block):
            first, last = labelling.labelled.spans[name]
            counts = torch.bincount(labels[first - block.start : last - block.start], minlength=block.d)
            found[name] = (counts / (last - first)).tolist()
    return found
