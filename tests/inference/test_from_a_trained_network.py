"""A trained network keeps what it has learned: relaxed at once, and binary after a few steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.models import LeNet5

STEPS = 100  # to become binary

NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)),
    "lenet5": lambda: LeNet5((1, 28, 28), 10, width=0.3),
}


@pytest.fixture(scope="module")
def data():
    found = digits()
    return [(split.images.float() / 255, split.labels) for split in (found.train, found.test)]


def accuracy(model, images, labels):
    with torch.no_grad():
        share = (model.eval()(images).argmax(1) == labels).float().mean().item()
    model.train()
    return 100 * share


def train(model, optimizer, steps, images, labels):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        drawn = torch.randint(len(labels), (50,))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[drawn]), labels[drawn]).backward()
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_digits_stay_learned(name, data):
    training, test = data
    torch.manual_seed(2)
    model = NETWORKS[name]()
    train(model, torch.optim.Adam(model.parameters(), lr=0.003), 200, *training)
    trained = accuracy(model, *test)
    assert trained > 95

    labelling = mq.Labelling(model, [-1, 1], which="weights", scale="channel", start="weights", learn_scale=True)
    solver = mq.ProximalMeanField(
        labelling,
        lambda p: torch.optim.Adam(p, lr=0.02),
        beta=mq.GeometricTo(end=1000.0),
        jacobian="straight_through",
    )
    solver.prepare(budget=STEPS)
    assert accuracy(model, *test) >= trained - 1
    train(model, solver, STEPS, *training)
    model = solver.finalize()
    assert accuracy(model, *test) >= trained - 2
    labelling.check_on_levels(model.state_dict())
