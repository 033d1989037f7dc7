"""Priors on labels against enumeration, their derivatives by autograd, and what they do to a labelling."""

import itertools
import math

import pytest
import torch
from torch import nn

from mrfquant.energies import CodeLength, FirstOrderTaylor, LabelPrior, SumOf
from mrfquant.errors import BadInput, BadSetting
from mrfquant.families import Independent
from mrfquant.families.distribution import PairOfLabels
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling

LEVELS = {2: [-1, 1], 3: [-1, 0, 1]}


def labelled(d, bias=True):
    torch.manual_seed(d)
    return Labelling(nn.Linear(3, 1, bias=bias).double(), LEVELS[d])


def distribution(block):
    u = torch.rand(block.d, block.m, dtype=torch.float64).mul(2).softmax(0)
    return PairOfLabels(block, lambda: u[1] - u[0]) if block.d == 2 else Independent(block, u)


def begun(energy, labelling, p):
    energy.attach(labelling)
    energy.begin_step(0, lambda: [p])
    return energy


@pytest.mark.parametrize("d", LEVELS)
def test_the_value_of_costs_is_their_expectation_by_enumeration(d):
    labelling = labelled(d)
    (block,) = labelling.blocks
    p = distribution(block)
    planes, costs = p.probabilities(), {-1: 2.0, 1: 0.5}
    energy = begun(LabelPrior(costs, which=["weight"]), labelling, p)
    expected = sum(
        math.prod(planes[label, j].item() for j, label in enumerate(labels))
        * sum(costs.get(LEVELS[d][label], 0.0) for label in labels[:3])  # not of the bias
        for labels in itertools.product(range(d), repeat=block.m)
    )
    assert energy.value(p).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", LEVELS)
def test_costs_may_be_a_list_in_the_order_of_the_levels(d):
    labelling = labelled(d)
    p = distribution(labelling.blocks[0])
    by_value, by_place = LabelPrior({-1: 0.7, 1: -0.2}), LabelPrior([0.7, *[0.0] * (d - 2), -0.2])
    found = [begun(energy, labelling, p).gradient(p).costs for energy in (by_value, by_place)]
    assert torch.equal(*found)


@pytest.mark.parametrize("d", LEVELS)
def test_costs_of_shares_are_the_derivative_by_autograd_and_the_value_is_in_bits(d):
    labelling = labelled(d, bias=False)
    (block,) = labelling.blocks
    p = distribution(block)
    leaf = p.probabilities().clone().requires_grad_()
    m = block.m + d / 2  # half a weight of every label
    shares = (leaf.sum(1) + 0.5) / m
    truth = -m * (shares * shares.log2()).sum()
    (derivative,) = torch.autograd.grad(truth, leaf)
    energy = begun(CodeLength(), labelling, p)
    gradient = energy.gradient(p).on_labels(block)
    derivative = derivative - derivative.mean(0)
    torch.testing.assert_close(gradient - gradient.mean(0), derivative, rtol=1e-6, atol=1e-6)
    counted = (energy.gradient(p).costs[0] * 0.5).sum()  # the half weights' own bits
    torch.testing.assert_close(energy.value(p) + counted, truth.detach(), rtol=1e-6, atol=1e-6)


def test_shares_are_counted_for_each_parameter_every_few_steps():
    labelling = labelled(3)
    (block,) = labelling.blocks
    energy = CodeLength(interval=2)
    energy.attach(labelling)
    decided = torch.eye(3, dtype=torch.float64)
    first, second = decided[:, [0, 0, 0, 1]], decided[:, [1, 1, 1, 2]]
    found = []
    for u in (first, second, second):
        p = Independent(block, u)
        energy.begin_step(0, lambda p=p: [p])
        found.append(energy.gradient(p).costs)
    assert torch.equal(found[0], found[1])
    expected = -(torch.tensor([[0.5, 3.5, 0.5], [0.5, 0.5, 1.5]]).double() / torch.tensor([[4.5], [2.5]])).log2()
    torch.testing.assert_close(found[2], expected)


@pytest.mark.parametrize("form", ["line", "planes"])
def test_a_cheap_zero_makes_the_layer_sparse_that_it_is_asked_for(form):
    zeros = {}
    for weight in (0.0, 0.1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
        energy = SumOf([FirstOrderTaylor(), LabelPrior({0: -1.0}, which=["0.weight"])], [1.0, weight])
        solver = ProximalMeanField(
            Labelling(model, [-1, 0, 1]), lambda p: torch.optim.Adam(p, lr=0.01), energy=energy, form=form
        )
        solver.prepare(60)
        x = torch.randn(50, 20)
        for _ in range(60):
            (model(x) - x[:, :5]).square().mean().backward()
            solver.step()
        with solver.rounded():
            zeros[weight] = {name: (p == 0).double().mean().item() for name, p in model.named_parameters()}
    assert zeros[0.1]["0.weight"] > 0.9
    assert max(zeros[0.0]["0.weight"], zeros[0.1]["2.weight"]) < 0.8


def test_values_between_backward_and_step_are_those_of_the_terms():
    torch.manual_seed(0)
    labelling = Labelling(nn.Linear(6, 2), [-1, 0, 1])
    energy = SumOf([FirstOrderTaylor(), LabelPrior({0: -1.0})], [1.0, 0.1])
    solver = ProximalMeanField(labelling, lambda p: torch.optim.Adam(p), energy=energy)
    labelling.model(torch.randn(5, 6)).square().sum().backward()
    found = solver.energies()
    (block,), (p,) = labelling.blocks, solver.distributions()
    expected = {"FirstOrderTaylor": (block.g @ block.w).item(), "LabelPrior": -p.probabilities()[1].sum().item()}
    assert found == pytest.approx(expected, rel=1e-5)
    assert solver.energies() == found  # looking changes nothing


def test_looking_at_energies_does_not_begin_a_step_twice():
    labelling = labelled(3)
    energy = CodeLength()
    solver = ProximalMeanField(labelling, torch.optim.Adam, energy=SumOf([FirstOrderTaylor(), energy]))
    for looks in (0, 1, 2):
        labelling.model(torch.ones(1, 3).double()).sum().backward()
        for _ in range(looks):
            solver.energies()
        solver.step()
    assert energy.state_dict()["begun"] == 3


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda: LabelPrior({5: 1.0}), "a cost of 5"),
        (lambda: LabelPrior([1.0, 2.0]), "2 costs for 3 levels"),
        (lambda: LabelPrior({0: 1.0}, which=["nothing*"]), "matches no labelled parameter"),
        (lambda: LabelPrior({0: 1.0}, which="weight"), "LabelPrior.which"),
    ],
)
def test_what_does_not_fit_the_labelling_is_refused(prior, message):
    with pytest.raises(BadInput, match=message):
        prior().attach(labelled(3))


def test_a_solver_without_a_distribution_is_refused():
    labelling, energy = labelled(3), CodeLength()
    energy.attach(labelling)
    with pytest.raises(BadInput, match="counts labels by their distribution"):
        energy.begin_step(0, lambda: None)


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(BadSetting, match="finite"):
        LabelPrior([math.inf, 0.0])
