"""Accuracy and loss of a network on a split, against a plain loop over the images."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.data import normalise, stand_in
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.training import evaluate
from mrfquant.training.evaluation import calibration_error, predict, score


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 10))


@pytest.mark.parametrize("batch_size", [1000, 37])
def test_figures_are_those_of_a_plain_loop(network, batch_size):
    data = stand_in("mnist")
    network.train()
    found = evaluate(network, data, data.val, batch_size)
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
    assert evaluate(network, data, data.val, forward=compiled) == evaluate(network, data, data.val)


def test_scores_follow_their_definitions():
    """Two confident images, one of them wrong, in one bin of confidence 0.9: accuracy 1/2, calibration error 0.4."""
    found = score(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
    assert found["top1"] == 50
    assert found["nll"] == pytest.approx(-(torch.log(torch.tensor([0.9, 0.1]))).mean().item())
    assert found["ece"] == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_calibration_error_is_that_of_torchmetrics(classes, sharpness):
    import_torchvision()  # torchmetrics imports it, and some builds need help
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.manual_seed(0)
    probabilities = (sharpness * torch.randn(1000, classes)).softmax(1)
    probabilities = probabilities[probabilities.amax(1) < 1]  # torchmetrics has a bin of its own for exactly 1
    labels = torch.randint(classes, (len(probabilities),))
    for bins in (1, 15):
        expected = multiclass_calibration_error(probabilities, labels, classes, n_bins=bins).item()
        assert calibration_error(probabilities, labels, bins).item() == pytest.approx(expected, abs=1e-6)


def test_full_confidence_is_in_the_last_bin():
    """0.95, right, and 1, wrong: accuracy 1/2, confidence 0.975."""
    probabilities = torch.tensor([[0.95, 0.05], [1.0, 0.0]])
    assert calibration_error(probabilities, torch.tensor([0, 1])).item() == pytest.approx(0.475, abs=1e-6)


def test_predictions_are_probabilities_at_a_temperature(network):
    data = stand_in("mnist")
    hot, cold = predict(network, data, data.val, 1000.0), predict(network, data, data.val)
    assert torch.allclose(cold.sum(1), torch.ones(len(data.val)))
    assert torch.equal(hot.argmax(1), cold.argmax(1))
    assert (hot.amax(1) <= cold.amax(1)).all()
