"""A step in one pass over memory is the step of torch's fused optimizer between product and projection."""

import copy
import functools

import pytest
import torch
from torch import nn

from mrfquant.energies import CodeLength, FirstOrderTaylor, LabelPrior, SumOf
from mrfquant.families import Gradient
from mrfquant.inference import MirrorDescent, ProximalMeanField, SparsemaxPGD
from mrfquant.kernels import dispatch
from mrfquant.labelling import Labelling
from mrfquant.schedules import Constant, Geometric

pytestmark = pytest.mark.skipif(dispatch.loops("simplex") is None, reason="numba is not installed")

OPTIMIZERS = {
    "Adam": functools.partial(torch.optim.Adam, lr=0.01, fused=True),
    "Adam, decay": functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.01, fused=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, fused=True),
    "SGD, momentum": functools.partial(
        torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.001, dampening=0.1, fused=True
    ),
}
LEVELS = {"2": [-1, 1], "2 others": [-0.3, 1.1], "3": [-1, 0, 1], "4 uneven": [-2, -1, 1, 2], "5 positive": range(5)}


def solver(levels, optimizer, fused=True, solver=ProximalMeanField, scale="none", **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(101, 200), nn.Tanh(), nn.Linear(200, 37))  # not a whole number of tiles
    made = solver(Labelling(model, list(levels), scale=scale), optimizer, **settings)
    made.prepare(20)
    if not fused:
        made.fused_update = lambda block, x: False
    return made


def train(solver, steps=4):
    x = torch.randn(16, 101, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        solver.labelling.model(x).square().mean().backward()
        solver.step()


def close(one, two):
    torch.testing.assert_close(one.variables[0], two.variables[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(one.labelling.labelled.w, two.labelling.labelled.w, atol=1e-5, rtol=1e-5)
    assert not one.labelling.labelled.g.any()
    states = [s.driver.state[s.variables[0]] for s in (one, two)]
    assert {name for name, value in states[0].items() if value is not None} >= set(states[1])
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("scale", ["none", "layer"])
def test_it_is_the_step_of_torch(levels, optimizer, scale):
    one, two = (solver(levels, optimizer, fused, scale=scale) for fused in (True, False))
    assert one.fused_update(*next(one.items()))
    one = solver(levels, optimizer, scale=scale)
    for each in (one, two):
        train(each)
    close(one, two)


def test_so_is_mirror_descent():
    one, two = (solver([-1, 0, 1], OPTIMIZERS["Adam"], fused, MirrorDescent) for fused in (True, False))
    for each in (one, two):
        train(each)
    close(one, two)


def priors():
    parts = [FirstOrderTaylor(), LabelPrior({1: -0.4}, which=["2.*"]), CodeLength(interval=2)]
    return SumOf(parts, [1.0, 0.1, Geometric(rho=1.1, interval=1, cap=1e-2, start=1e-3)])


@pytest.mark.parametrize("kind", [ProximalMeanField, MirrorDescent])
@pytest.mark.parametrize("levels", [[-1, 1], [-0.3, 1], [-1, 0, 1], [0, 1, 2], [-2, -1, 1, 2], range(5)], ids=str)
@pytest.mark.parametrize("scale", ["none", "channel"])
@pytest.mark.parametrize("beta", [1.0, 1e4])
def test_costs_of_labels_go_into_it(kind, levels, scale, beta):
    settings = {"solver": kind, "scale": scale, "beta": Constant(beta)}
    one, two = (solver(levels, OPTIMIZERS["SGD"], o, energy=priors(), **settings) for o in (True, False))
    one.begin()
    assert one.fused_update(*next(one.items()))
    one, without = (solver(levels, OPTIMIZERS["SGD"], energy=e, **settings) for e in (priors(), None))
    for each in (one, two, without):
        train(each, 3 if beta == 1 else 1)  # at large beta, rounding decides labels in the steps after
    near = 1e-6 * (1 if one.mirror else beta)
    torch.testing.assert_close(one.variables[0], two.variables[0], atol=near, rtol=1e-4)
    assert (one.variables[0] - without.variables[0]).abs().max() > 50 * near


@pytest.mark.parametrize("jacobian", ["exact", "reference", "straight_through"])
@pytest.mark.parametrize("levels", [[-1, 0, 1], [-2, -1, 1, 2], [0, 0.5, 1]], ids=str)
@pytest.mark.parametrize("scale", ["none", "channel"])
def test_on_planes_costs_go_into_the_product(jacobian, levels, scale, monkeypatch):
    how, gradient = (levels, OPTIMIZERS["SGD"]), SumOf.gradient
    settings = {"scale": scale, "form": "planes", "jacobian": jacobian, "beta": Constant(3.0)}
    compiled, plain, general = (solver(*how, energy=priors(), **settings) for _ in range(3))

    def by_labels(self, p):
        return Gradient(marginals=gradient(self, p).on_labels(p.block))

    train(compiled, 3)
    monkeypatch.setattr(dispatch, "MIN_SIZE", 10**9)
    train(plain, 3)
    monkeypatch.setattr(SumOf, "gradient", by_labels)
    train(general, 3)
    for other in (plain, general):
        torch.testing.assert_close(compiled.variables[0], other.variables[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("first", [True, False], ids=["from one pass", "to one pass"])
def test_either_way_goes_on_from_the_state_of_the_other(optimizer, first):
    whole = solver([-1, 0, 1], optimizer, fused=False)
    train(whole, 6)
    one = solver([-1, 0, 1], optimizer, fused=first)
    train(one, 3)
    two = solver([-1, 0, 1], optimizer, fused=not first)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    train(two, 3)
    torch.testing.assert_close(two.variables[0], whole.variables[0], atol=1e-6, rtol=1e-6)


OTHERS = {
    "planes": {"form": "planes"},
    "a product that needs u": {"jacobian": "exact"},
    "another projection": {"solver": SparsemaxPGD},
    "an optimizer that is not fused": {"optimizer": functools.partial(torch.optim.Adam, lr=0.01)},
    "another optimizer": {"optimizer": functools.partial(torch.optim.RMSprop, lr=0.01)},
    "a variant": {"optimizer": functools.partial(torch.optim.Adam, lr=0.01, amsgrad=True, fused=True)},
}


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_others_are_left_to_torch(settings):
    made = solver(**{"levels": [-1, 0, 1], "optimizer": OPTIMIZERS["Adam"], **settings})
    before = made.variables[0].clone()
    assert not made.fused_update(*next(made.items()))
    assert torch.equal(made.variables[0], before)
    assert not made.driver.state[made.variables[0]]


def test_a_solver_with_a_step_of_its_own_keeps_it():
    class Halved(ProximalMeanField):
        def update(self, block, x):
            return super().update(block, x) / 2

    made = solver([-1, 0, 1], OPTIMIZERS["SGD"], solver=Halved)
    assert not made.fused_update(*next(made.items()))
