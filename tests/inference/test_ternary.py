"""Three even levels on a line: chances and slopes by their means, against planes and autograd."""

import pytest
import torch
from torch import nn

from mrfquant.energies import CliquePotts, FirstOrderTaylor, LabelPrior, SumOf
from mrfquant.inference import MirrorDescent, ProximalICM, ProximalMeanField
from mrfquant.inference.ternary import TernaryMeans
from mrfquant.labelling import Labelling
from mrfquant.projections import Line
from mrfquant.schedules import Constant

LEVELS = [[-1, 0, 1], [0, 0.5, 1], [-2, 0, 2]]


def network(width=20):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 30), nn.Tanh(), nn.Linear(30, 10))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("scale", ["none", "channel"])
@pytest.mark.parametrize("beta", [1e-6, 0.3, 3.4, 30.0])  # at 3.466 A is 1
def test_chances_are_those_of_the_planes_and_slopes_their_derivatives(levels, scale, beta):
    (block,) = Labelling(network().double(), levels, scale=scale).blocks
    line = Line(block.q, 0.1)
    a = torch.linspace(-0.5, 0.5, block.m, dtype=torch.float64).requires_grad_()
    u = torch.softmax(beta * line.planes(a), 0)
    block.write(u.detach())
    mean = block.q @ u if block.scale is None else (block.q @ u) * block.scale
    (along,) = torch.autograd.grad(mean.sum(), a, retain_graph=True)
    means = TernaryMeans(block, line).at(beta)
    seen = along.abs() > 1e-7  # further out a quotient of derivatives says nothing
    for label in range(3):
        (derivative,) = torch.autograd.grad(u[label].sum(), a, retain_graph=True)
        chance, slope = means.chance(label)
        torch.testing.assert_close(chance, u[label].detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(slope[seen], (derivative / along)[seen], rtol=1e-4, atol=1e-4)


def test_decided_weights_have_the_slope_towards_the_middle():
    (block,) = Labelling(nn.Linear(3, 1, bias=False), [-1, 0, 1]).blocks
    block.w.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    chance, slope = TernaryMeans(block, Line(block.q, 0.1)).at(1e5).chance(1)
    assert chance.tolist() == pytest.approx([0, 1, 0], abs=1e-5)
    assert slope.tolist() == pytest.approx([1, 0, -1], abs=1e-5)


def energies():
    parts = [FirstOrderTaylor(), CliquePotts(), LabelPrior([0.1, 0.0, 0.3]), CliquePotts(cliques="inputs")]
    return SumOf(parts, [1.0, 5.0, 0.5, 2.0])


@pytest.mark.parametrize("kind", [ProximalMeanField, MirrorDescent])
@pytest.mark.parametrize("scale", ["none", "channel"])
def test_the_short_way_leads_where_the_long_one_does(kind, scale, monkeypatch):
    found = []
    for short in (True, False):
        if not short:
            monkeypatch.setattr(kind, "_means", lambda *_: None)
        labelling = Labelling(network().double(), [-1, 0, 1], scale=scale)
        solver = kind(labelling, lambda p: torch.optim.SGD(p, lr=0.01), beta=Constant(2.0), energy=energies())
        for _ in range(3):
            labelling.model(torch.ones(4, 20, dtype=torch.float64)).square().sum().backward()
            solver.step()
        found.append(labelling.labelled.w.clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_the_step_in_one_pass_leads_where_the_others_do(monkeypatch):
    pytest.importorskip("numba")
    found = []
    for at_once in (True, False):
        labelling = Labelling(network(600), [-1, 0, 1])  # large enough for compiled loops
        solver = ProximalMeanField(labelling, lambda p: torch.optim.Adam(p, lr=0.01, fused=True), energy=energies())
        done = []
        whole = solver.step_at_once
        solver.step_at_once = lambda *item, done=done, whole=whole, at_once=at_once: (
            done.append(at_once and whole(*item)) or done[-1]
        )
        for _ in range(3):
            labelling.model(torch.ones(4, 600)).square().sum().backward()
            solver.step()
            assert not labelling.labelled.g.any()
        assert done == [at_once] * 3
        found.append(labelling.labelled.w.clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [ProximalMeanField, MirrorDescent, ProximalICM])
@pytest.mark.parametrize(
    ("form", "levels"),
    [("line", [-1, 0, 1]), ("line", [0, 1]), ("planes", [-1, 0, 1]), ("planes", [-2, -1, 0, 1])],
)
def test_without_a_loss_whole_channels_go_to_0(kind, form, levels):
    torch.manual_seed(0)
    labelling = Labelling(network().double(), levels, form=form)
    solver = kind(labelling, lambda p: torch.optim.SGD(p, lr=3.0), energy=CliquePotts(which=["0.weight"]))
    before = (labelling.labelled.w[:600] == 0).double().mean()
    for _ in range(400):
        solver.step()
    with solver.rounded():
        after = (labelling.model[0].weight == 0).double().mean()
    assert before < 0.5
    assert after == 1
