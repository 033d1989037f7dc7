"""Channels that go as a whole: the factors of LeNet-5's batch norms are variables with the labels 0 and 1.

A prior makes an open gate cost something. After half of the steps `mrfquant.prune` takes the closed channels out, and
what remains is trained for the other half. Beside it, L1 filter pruning: the smallest filters go, as many in a layer.

Expected output, in about 40 seconds (the last digits depend on the machine); given a folder with MNIST, and costs if
you like, it takes 2,000 steps instead of 200:

    cost 0.0001  channels 20, 49, 494  accuracy 98.67 %   L1 filter pruning: accuracy 99.00 %
    cost 0.001   channels 18, 27, 189  accuracy 99.33 %   L1 filter pruning: accuracy 99.33 %
"""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits, mnist
from mrfquant.training import evaluate


def network() -> tuple[nn.Sequential, dict[str, nn.Module]]:
    """LeNet-5 and its batch norms, with a factor for every channel."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 20, 5), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(20, 50, 5), nn.BatchNorm2d(50), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*first, *second, nn.Linear(800, 500), nn.BatchNorm1d(500), nn.ReLU(), nn.Linear(500, 10))
    norms = {name: layer for name, layer in model.named_children() if hasattr(layer, "running_mean")}
    return model, norms


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator, steps: int) -> None:
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for images, labels in (next(batches) for _ in range(steps)):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        falling.step()


def close_gates(model: nn.Sequential, norms: dict[str, nn.Module], batches: Iterator, steps: int, cost: float) -> None:
    """Train weights and gates; the likeliest labels of the gates are decided in the end."""
    for norm in norms.values():
        nn.init.constant_(norm.weight, 0.9)  # open, and yet not decided
    gates = {f"{name}.weight": [0, 1] for name in norms}
    labelling = mq.Labelling(model, gates)
    energy = mq.SumOf([mq.FirstOrderTaylor(), mq.LabelPrior({1: 1.0})], weights=[1.0, cost])
    beta = mq.GeometricTo(end=10000)
    settings = {"start": "weights", "groups": {"labelled": {"lr": 0.03}}}
    adam = functools.partial(torch.optim.Adam, lr=0.003)
    solver = mq.ProximalMeanField(labelling, adam, beta, energy, **settings)
    solver.prepare(steps)
    fit(model, solver, batches, steps)
    solver.finalize()


def cut_filters(model: nn.Sequential, norms: dict[str, nn.Module], channels: list[int]) -> None:
    """The filters of the least magnitude go, so that this many remain in each layer."""
    for (name, norm), count in zip(norms.items(), channels, strict=True):
        magnitudes = model[int(name) - 1].weight.detach().flatten(1).abs().sum(1)
        norm.weight.data[magnitudes.argsort()[: len(magnitudes) - count]] = 0


def pruned(data: mq.Dataset, steps: int, cost: float | None = None, channels: list[int] | None = None) -> nn.Sequential:
    """Trained for half of the steps, by gates or not; what remains, for the other half."""
    (model, norms), batches = network(), data.stream(100, seed=0)
    if channels is None:
        close_gates(model, norms, batches, steps // 2, cost)
    else:
        fit(model, torch.optim.Adam(model.parameters(), lr=0.003), batches, steps // 2)
        cut_filters(model, norms, channels)
    model = mq.prune(model.eval()).train()
    fit(model, torch.optim.Adam(model.parameters(), lr=0.003), batches, steps // 2)
    return model


if __name__ == "__main__":
    data, steps = (mnist(Path(sys.argv[1])), 2000) if len(sys.argv) > 1 else (digits(Path()), 200)
    for cost in map(float, sys.argv[2:] or (0.0001, 0.001)):
        gated = pruned(data, steps, cost)
        channels = [len(layer.running_mean) for layer in gated if hasattr(layer, "running_mean")]
        accuracies = [evaluate(m, data, "test")["top1"] for m in (gated, pruned(data, steps, channels=channels))]
        print(f"cost {cost:<7} channels {', '.join(map(str, channels)):<11}", end="  ", flush=True)
        print("accuracy {:.2f} %   L1 filter pruning: accuracy {:.2f} %".format(*accuracies), flush=True)
