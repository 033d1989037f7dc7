"""Channels that go together: a potential over whole channels, and the smaller network that is left.

A ternary network learns the embedded digits while every hidden unit pays for not being 0 as a whole. `mq.prune` takes
the units out that are, and the outputs stay what they were.

It prints the sizes that are left and the test accuracy, in about 20 seconds: the more a unit costs, the fewer stay.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.training import evaluate

STEPS = 600


def train(cost: float, data: mq.Dataset) -> nn.Module:
    """A ternary network with two hidden layers, each unit of which costs so much unless all of its weights are 0."""
    torch.manual_seed(0)
    first = [nn.Linear(784, 100), nn.BatchNorm1d(100, affine=False), nn.ReLU()]
    second = [nn.Linear(100, 50), nn.BatchNorm1d(50, affine=False), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(50, 10))
    energy = mq.SumOf([mq.FirstOrderTaylor(), mq.CliquePotts()], weights=[1.0, cost])
    labelling = mq.Labelling(model, levels=[-1, 0, 1])
    solver = mq.ProximalMeanField(labelling, lambda tensors: torch.optim.Adam(tensors, lr=0.003), energy=energy)
    solver.prepare(STEPS)
    batches = data.stream(100, seed=0)
    for images, labels in (next(batches) for _ in range(STEPS)):
        functional.cross_entropy(model(images), labels).backward()
        solver.step()
    return solver.finalize().eval()


if __name__ == "__main__":
    data = digits(Path())  # the images come with scikit-learn: there is no folder to read
    images = next(data.stream(100, seed=1))[0]
    for cost in (0.0, 0.01, 0.1):
        whole = train(cost, data)
        small = mq.prune(whole)
        assert torch.allclose(small(images), whole(images), atol=1e-3)
        sizes = " - ".join(str(layer.out_features) for layer in small if isinstance(layer, nn.Linear))
        weights = sum(p.numel() for p in small.parameters())
        accuracy = evaluate(small, data, "test")["top1"]
        print(f"cost {cost:<4}  units {sizes:13} {weights:6,} weights  test accuracy {accuracy:.2f} %", flush=True)
