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

    labelling = mq.Labelling(model, [-1, 1], which="weights", scale="channel")
    solver = mq.ProximalMeanField(
        labelling,
        lambda p: torch.optim.Adam(p, lr=0.02),
        beta=mq.GeometricTo(end=1000.0),
        jacobian="straight_through",
        start="weights",
        learn_scale=True,
    )
    solver.prepare(budget=STEPS)
    assert accuracy(model, *test) >= trained - 1
    train(model, solver, STEPS, *training)
    model = solver.finalize()
    assert accuracy(model, *test) >= trained - 2
    labelling.check_on_levels(model.state_dict())


@pytest.mark.parametrize("levels", [[-1, 1], [-1, 0, 1], mq.uniform(2), mq.uniform(3)])
@pytest.mark.parametrize("group_size", [None, 50])
@pytest.mark.parametrize("form", ["line", "planes"])
def test_labels_found_by_rounding_are_where_training_starts(levels, group_size, form, data):
    (images, _), _ = data
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10))
    result = mq.round_network(model, [images[:900]], levels, "gptq", group_size=group_size, progress=False)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scale = "group" if group_size else "channel"
    labelling = mq.Labelling(model, levels, which="weights", scale=scale, group_size=group_size or 1)
    solver = mq.ProximalMeanField(labelling, lambda p: torch.optim.Adam(p, lr=0.02), start="labels", form=form)
    (item,) = solver.items()
    expected = torch.cat([result.labels[name].flatten() for name in labelling.labelled.spans])
    assert torch.equal(solver.labels(*item), expected.int())
    with solver.rounded():
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-5, atol=1e-7)


def test_weights_off_the_levels_are_no_labels():
    labelling = mq.Labelling(nn.Linear(30, 5), [-1, 1], which="weights", scale="channel")
    with pytest.raises(mq.BadInput, match=r"weight is not on the levels .* times a scale: round the network first"):
        mq.ProximalMeanField(labelling, torch.optim.Adam, start="labels")
