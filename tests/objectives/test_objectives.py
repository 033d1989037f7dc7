"""Losses and figures against their definitions, and objectives against what evaluation asks of them."""

import math

import pytest
import torch

from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput
from mrfquant.metric import TOP1, Metric
from mrfquant.objectives import CrossEntropy, Distillation, NextToken, Regression
from mrfquant.objectives.classification import calibration_error
from mrfquant.testing import ObjectiveContract


class TestCrossEntropy(ObjectiveContract):
    part = CrossEntropy
    settings = {"temperature": 2.0}
    outputs, targets = torch.randn(40, 7), torch.randint(7, (40,))


class TestNextToken(ObjectiveContract):
    part = NextToken
    outputs, targets = torch.randn(12, 5, 9), torch.randint(9, (12, 5))


class TestRegression(ObjectiveContract):
    part = Regression
    outputs, targets = torch.randn(30, 2), torch.randn(30, 2)


class TestDistillation(ObjectiveContract):
    part = Distillation
    outputs, targets = torch.randn(40, 7), torch.randint(7, (40,))


def test_distillation_mixes_the_loss_with_the_divergence_from_the_network_as_it_was():
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(5, 3), torch.randn(8, 5), torch.randint(3, (8,))
    objective = Distillation(share=0.3, softness=2.0)
    objective.attach(model)
    before = model(x).detach()
    torch.nn.init.normal_(model.weight)
    outputs = model(x)
    p, q = (before / 2).softmax(1), (outputs / 2).softmax(1)
    divergence = (p * (p / q).log()).sum(1).mean()
    expected = 0.7 * torch.nn.functional.cross_entropy(outputs, y) + 0.3 * 4 * divergence
    torch.testing.assert_close(objective.training_loss(outputs, y, x), expected)
    again = Distillation()
    again.attach(model)
    again.load_state_dict(objective.state_dict())
    torch.testing.assert_close(again.teacher(x), before)


@pytest.mark.parametrize("better", [True, False])
def test_a_teacher_that_is_worse_than_the_network_can_be_left_out(better):
    torch.manual_seed(0)
    y = torch.arange(8) % 3
    right = torch.nn.functional.one_hot(y, 3).float()
    teacher = (5 if better else 1) * right
    outputs = 3 * right
    parted, whole = (Distillation(share=0.5, while_better=often) for often in (True, False))
    for objective in (parted, whole):
        objective.attach(torch.nn.Identity())
    own = torch.nn.functional.cross_entropy(outputs, y)
    expected = whole.training_loss(outputs, y, teacher) if better else own
    torch.testing.assert_close(parted.training_loss(outputs, y, teacher), expected)


def test_cross_entropy_takes_tokens():
    outputs, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    torch.testing.assert_close(CrossEntropy().loss(outputs, targets), NextToken().loss(outputs, targets))


def test_distillation_with_no_share_asks_no_teacher():
    objective, outputs, y = Distillation(share=0.0), torch.randn(8, 3), torch.randint(3, (8,))
    objective.attach(torch.nn.Module())  # has no forward
    assert torch.equal(objective.training_loss(outputs, y, None), torch.nn.functional.cross_entropy(outputs, y))


def test_next_token_is_the_mean_over_all_places_and_its_exponential():
    outputs, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    logs = outputs.log_softmax(2)
    mean = -sum(logs[i, j, targets[i, j]].item() for i in range(3) for j in range(4)) / 12
    objective = NextToken()
    assert objective.loss(outputs, targets).item() == pytest.approx(mean, rel=1e-5)
    figures = objective.figures(objective.sums(outputs, targets).tolist())
    assert figures == pytest.approx({"loss": mean, "perplexity": math.exp(mean), "bits": mean / math.log(2)}, rel=1e-5)


def test_regression_is_judged_by_the_root_of_the_mean_squared_error():
    figures = Regression().score(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [4.0]]))
    assert figures == pytest.approx({"rmse": math.sqrt(2.5), "mae": 1.5})


@pytest.mark.parametrize("objective", [CrossEntropy(), NextToken(), Regression()])
def test_outputs_that_do_not_fit_are_refused(objective):
    with pytest.raises(BadInput, match=r"outputs of shape \(4, 2, 3\)"):
        objective.loss(torch.randn(4, 2, 3), torch.randint(3, (4,)))


def test_metrics_know_which_way_is_better_and_how_they_are_read():
    loss = Metric("loss", "loss", higher=False)
    assert [TOP1.better(91.0, 90.0), TOP1.better(90.0, 90.0), TOP1.better(1.0, None)] == [True, False, True]
    assert [loss.better(1.0, 2.0), loss.better(2.0, 1.0), loss.better(1.0, None)] == [True, False, True]
    assert (TOP1.text(97.666), loss.text(1.23456), TOP1.head, loss.head) == ("97.67 %", "1.2346", "top-1 %", "loss")


@pytest.mark.parametrize("damaged", [None, 3, {}, {"name": "loss"}, {"name": 1, "title": 2, "higher": True}, {"x": 1}])
def test_a_summary_that_names_no_metric_is_judged_by_top1(damaged):
    assert Metric.of({"metric": damaged}) == TOP1
    assert Metric.of({"metric": NextToken().primary_metric.as_fields()}) == NextToken().primary_metric


def test_scores_follow_their_definitions():
    """Two confident images, one of them wrong, in one bin of confidence 0.9: accuracy 1/2, calibration error 0.4."""
    found = CrossEntropy().score(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
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
