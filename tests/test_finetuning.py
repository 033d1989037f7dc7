"""A trained network comes onto levels by one call, is an ordinary one afterwards, and batch norm fits it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 64, 20, generator=generator)
    return [(x, (x[:, :5].sum(1) > 0).long()) for x in inputs]


def accuracy(model):
    return sum((model(x).argmax(1) == y).float().mean().item() for x, y in batches(10, seed=9)) / 10


@pytest.fixture(scope="module")
def trained():
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in batches(200):
        adam.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        adam.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def started(trained):
    model = network()
    model.load_state_dict(trained)
    return model


@pytest.mark.parametrize("levels", [[-1, 1], [-1, 0, 1]])
def test_the_network_stays_accurate_on_two_and_three_levels(trained, levels):
    model, lines = started(trained), []
    done = mq.finetune(model, levels, batches(60), steps=120, lr=0.003, evaluate=accuracy, say=lines.append)
    assert done.before > 0.93
    assert done.after == pytest.approx(accuracy(model.eval()), abs=1e-6)
    assert done.after > done.before - 0.04
    assert len(done.losses) == 120
    assert done.refreshed == 1
    assert list(done.shares) == ["3.weight"]  # the first and the last layer stay in float
    assert sum(done.shares["3.weight"]) == pytest.approx(1)
    rows = model[3].weight.detach()
    assert all(len(row.unique()) <= len(levels) for row in rows)
    assert "after" in lines[-1]


def test_one_pass_of_a_generator_is_enough(trained):
    done = mq.finetune(started(trained), [-1, 1], iter(batches(20)), steps=20, lr=0.003, say=None)
    assert done.refreshed == 1


def test_batch_norm_has_the_mean_statistics_of_the_batches(trained):
    model, few = started(trained), batches(7, seed=3)
    model.train()
    assert mq.refresh_batch_norm(model, few) == 1
    with torch.no_grad():
        outputs = [model[0](x) for x, _ in few]
    norm = model[1]
    torch.testing.assert_close(norm.running_mean, torch.stack([y.mean(0) for y in outputs]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([y.var(0) for y in outputs]).mean(0))
    assert norm.momentum == 0.1
    norm.eval()
    before = norm.running_mean.clone()
    assert mq.refresh_batch_norm(model, few) == 0
    assert torch.equal(norm.running_mean, before)


def test_a_loss_of_ones_own_takes_any_batch(trained):
    few = [{"x": x, "y": y} for x, y in batches(10)]
    done = mq.finetune(
        started(trained),
        [-1, 1],
        few,
        lambda m, b: functional.cross_entropy(m(b["x"]), b["y"]),
        steps=10,
        lr=0.001,
        say=None,
    )
    assert done.before is None


def test_without_a_loss_the_float_network_teaches(trained):
    teaching = mq.Distillation(share=0.9, softness=3.0, while_better=True)
    made = [
        mq.finetune(started(trained), [-1, 0, 1], batches(10), loss, steps=10, lr=0.003, say=None).losses
        for loss in (None, teaching, mq.CrossEntropy())
    ]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_tokens_are_learned_by_cross_entropy_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10))
    state, tokens = copy.deepcopy(model.state_dict()), torch.randint(10, (4, 8))
    made = []
    for loss in (None, mq.CrossEntropy()):
        model.load_state_dict(state)
        made.append(mq.finetune(model, [-1, 1], [(tokens, tokens)], loss, steps=5, lr=0.01, say=None).losses)
        model = copy.deepcopy(model)
    assert made[0] == made[1]


def test_bad_input_is_told_in_a_sentence(trained):
    few = batches(3)
    with pytest.raises(mq.BadInput, match="expected at least 1"):
        mq.finetune(started(trained), [-1, 1], few, steps=0, lr=0.001)
    with pytest.raises(mq.BadInput, match="a DataLoader, which can begin again"):
        mq.finetune(started(trained), [-1, 1], iter(few), steps=5, lr=0.001, say=None)
    with pytest.raises(mq.BadInput, match=r"a batch is a dict, expected \(inputs, targets\)"):
        mq.finetune(started(trained), [-1, 1], [{"x": 1, "y": 2}], steps=5, lr=0.001, say=None)
