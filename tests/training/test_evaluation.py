"""Accuracy and loss of a network on a split, against a plain loop over the images."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.data import Split, normalise, stand_in
from mrfquant.objectives import CrossEntropy
from mrfquant.training import evaluate, evaluation
from mrfquant.training.evaluation import predict, sums_of


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 10))


def test_figures_are_those_of_a_plain_loop(network):
    data = stand_in("mnist")
    network.train()
    found = evaluate(network, data, "val")
    assert network.training  # as it was
    network.eval()
    top1 = top5 = loss = 0.0
    for image, label in zip(data.val.images, data.val.labels, strict=True):
        with torch.no_grad():
            logits = network(normalise(image[None], data.mean, data.std))[0]
        order = logits.argsort(descending=True).tolist()
        top1 += order[0] == label
        top5 += label.item() in order[:5]
        loss += functional.cross_entropy(logits[None], label[None]).item()
    count = len(data.val)
    assert found["top1"] == pytest.approx(100 * top1.item() / count, abs=1e-4)
    assert found["top5"] == pytest.approx(100 * top5 / count, abs=1e-4)
    assert found["loss"] == pytest.approx(loss / count, rel=1e-4)


def test_a_compiled_network_is_evaluated_in_its_place(network):
    data = stand_in("mnist")
    compiled = torch.compile(network, backend="eager")
    assert evaluate(network, data, "val", forward=compiled) == evaluate(network, data, "val")


def test_predictions_are_probabilities_at_a_temperature(network):
    data = stand_in("mnist")
    (hot, _), (cold, labels) = (predict(network, data, "val", CrossEntropy(temperature=t)) for t in (1000.0, 1.0))
    assert torch.equal(labels, data.val.labels)
    assert torch.allclose(cold.sum(1), torch.ones(len(data.val)))
    assert torch.equal(hot.argmax(1), cold.argmax(1))
    assert (hot.amax(1) <= cold.amax(1)).all()


def test_a_share_of_a_split_is_every_nth_batch(network, monkeypatch):
    monkeypatch.setattr(evaluation, "CPU_BATCH", 10)
    data, objective = stand_in("mnist"), CrossEntropy()
    chosen = torch.arange(len(data.val)) // 10 % 5 == 0
    part = replace(data, val=Split(data.val.images[chosen], data.val.labels[chosen]))
    found, whole = sums_of(network, data, "val", objective, share=5)
    assert objective.figures(found) == pytest.approx(evaluate(network, part, "val"))
    assert objective.figures(whole) == pytest.approx(evaluate(network, data, "val"))
    assert sums_of(network, data, "val", objective, share=5, others=False) == [found, found]
