"""A small network on the embedded digits, trained by a plain loop."""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.data.digits import digits


@pytest.fixture(scope="session")
def on_digits():
    """`network(seed)` makes one, `train(model, solver, steps)` trains it, `accuracy(model)` tests it."""
    dataset = digits()

    def tensors(split):
        images = split.images.float().div(255).sub(dataset.mean[0]).div(dataset.std[0])
        return functional.avg_pool2d(images, 2).flatten(1), split.labels

    images, labels = tensors(dataset.train)
    test_images, test_labels = tensors(dataset.test)

    def network(seed=0):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(196, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def train(model, solver, steps):
        dtype = next(model.parameters()).dtype
        solver.prepare(steps)
        for step in range(steps):
            chosen = torch.randint(len(images), (100,), generator=torch.Generator().manual_seed(step))
            functional.cross_entropy(model(images[chosen].to(dtype)).float(), labels[chosen]).backward()
            solver.step()

    @torch.no_grad()
    def accuracy(model):
        dtype = next(model.parameters()).dtype
        return (model.eval()(test_images.to(dtype)).argmax(1) == test_labels).float().mean().item()

    return types.SimpleNamespace(network=network, train=train, accuracy=accuracy)
