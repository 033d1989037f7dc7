"""Rounding a network that is trained already: each layer is a Markov random field over the labels of its weights.

A float network is trained on the embedded digits and rounded to two bits a weight without further training: once each
weight to its nearest level, once by ICM on the field, which knows how the weights of a row make up for each other.

Expected output, in about 10 seconds (the last digits depend on the machine). The error is half the mean squared
distance of a layer's outputs from what real weights could give:

    float    test accuracy 98.33 %
    nearest  test accuracy 97.67 %   errors 1.weight 9.312, 3.weight 33.785, 5.weight 17.613
    icm      test accuracy 97.67 %   errors 1.weight 0.146, 3.weight 7.657, 5.weight 1.770
"""

import itertools
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.training import evaluate

STEPS = 500


def train(data: mq.Dataset) -> nn.Module:
    """A float network."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    batches = data.stream(100, seed=0)
    for images, labels in (next(batches) for _ in range(STEPS)):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def rounded(model: nn.Module, data: mq.Dataset, solver: str) -> tuple[float, str]:
    """Test accuracy in percent after rounding, and the error of each layer."""
    model = deepcopy(model)
    batches = itertools.islice(data.ordered("train", 250), 8)
    result = mq.round_network(model, batches, bits=2, solver=solver, progress=False)
    errors = [f"{layer.name} {layer.energy:.3f}" for layer in result.layers]
    return evaluate(model, data, "test")["top1"], ", ".join(errors)


if __name__ == "__main__":
    data = digits(Path())  # the images come with scikit-learn: there is no folder to read
    model = train(data)
    print(f"float    test accuracy {evaluate(model, data, 'test')['top1']:.2f} %", flush=True)
    for solver in ("nearest", "icm"):
        accuracy, errors = rounded(model, data, solver)
        print(f"{solver:8} test accuracy {accuracy:.2f} %   errors {errors}", flush=True)
