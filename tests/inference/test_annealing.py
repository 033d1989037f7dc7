"""Annealing schedules: the paper's is the authors' loop, the others go from start to end over the budget, and so does
the default where there is one."""

import functools
import itertools
import math

import pytest
import torch

import mrfquant as mq
from mrfquant.errors import BadSetting
from mrfquant.schedules import Geometric, GeometricTo, LinearTo

BUDGET = 400
TO = [GeometricTo, LinearTo]


@pytest.mark.parametrize("rho", [1.01, 1.2, 3.0, 1.0, 0.9])
@pytest.mark.parametrize("interval", [1, 7, 100])
@pytest.mark.parametrize("cap", [2.0, 1e4])
def test_geometric_is_the_loop_that_grows_after_every_interval_th_step(rho, interval, cap):
    schedule, beta = Geometric(rho=rho, interval=interval, cap=cap), 1.0
    for k in range(BUDGET):
        assert schedule(k, BUDGET) == pytest.approx(beta, rel=1e-12)
        if k % interval == 0:  # after the step of iteration k
            beta = min(beta * rho, cap)


def test_geometric_starts_at_start_and_ends_exactly_at_cap():
    schedule = Geometric(rho=1.5, interval=10, cap=37.0, start=0.2)
    assert schedule(0, BUDGET) == pytest.approx(0.2)
    assert schedule(1, BUDGET) == schedule(10, BUDGET) == pytest.approx(0.3)
    assert schedule(11, BUDGET) == pytest.approx(0.45)
    assert schedule(BUDGET, BUDGET) == 37.0


def test_geometric_never_exceeds_its_cap():
    assert {Geometric(rho=2.0, interval=1, cap=3.0, start=5.0)(k, BUDGET) for k in range(5)} == {3.0}


@pytest.mark.parametrize("interval", [1, 100])
def test_geometric_does_not_overflow_in_an_endless_run(interval):
    assert Geometric(rho=1.2, interval=interval)(10**9, 10**9) == 1e4
    assert 0 <= Geometric(rho=0.5, interval=interval)(10**9, 10**9) < 1e-300


def test_geometric_does_not_depend_on_the_budget():
    schedule = Geometric(rho=1.1, interval=3)
    assert [schedule(k, 10) for k in range(30)] == [schedule(k, 10_000) for k in range(30)]


@pytest.mark.parametrize("setting", [{"rho": 0.0}, {"interval": 0}, {"cap": 0.0}, {"start": -1.0}, {"cap": math.inf}])
def test_geometric_refuses_impossible_settings(setting):
    with pytest.raises(BadSetting, match=f"Geometric.{next(iter(setting))}"):
        Geometric(**{"rho": 1.1, **setting})


@pytest.mark.parametrize(("start", "end"), [(1.0, 1e4), (0.1, 0.7), (5.0, 0.5)])
@pytest.mark.parametrize("kind", TO)
def test_values_go_from_start_to_end_without_turning_and_stay_there(kind, start, end):
    schedule = kind(start=start, end=end)
    values = [schedule(k, BUDGET) for k in range(BUDGET + 1)]
    assert values[0] == pytest.approx(start, rel=1e-12)
    assert values[-1] == pytest.approx(end, rel=1e-12)
    direction = math.copysign(1, end - start)
    assert all(direction * (b - a) > 0 for a, b in itertools.pairwise(values))
    assert {schedule(k, BUDGET) for k in (BUDGET + 1, 2 * BUDGET, 10**9)} == {values[-1]}


def test_linear_grows_by_equal_amounts_geometric_by_equal_factors():
    linear = [LinearTo(start=2.0, end=10.0)(k, 8) for k in range(9)]
    assert linear == pytest.approx([2, 3, 4, 5, 6, 7, 8, 9, 10])
    geometric = [GeometricTo(start=1.0, end=256.0)(k, 8) for k in range(9)]
    assert geometric == pytest.approx([1, 2, 4, 8, 16, 32, 64, 128, 256])
    assert [GeometricTo(256.0, power=3.0)(k, 2) for k in range(3)] == [1, 2, 256]


@pytest.mark.parametrize("kind", TO)
def test_a_run_without_iterations_has_a_value(kind):
    assert kind(start=1.0, end=7.0)(0, 0) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", TO)
@pytest.mark.parametrize("setting", [{"start": 0.0}, {"end": -1.0}, {"end": math.nan}])
def test_impossible_end_points_are_refused_by_name(kind, setting):
    with pytest.raises(BadSetting, match=f"{kind.__name__}.{next(iter(setting))}"):
        kind(**setting)


DEFAULTS = {
    "PMF": (mq.ProximalMeanField, 1.02, 1e3),
    "PGD": (mq.SparsemaxPGD, 1.01, 1e3),
    "MD": (mq.MirrorDescent, 1.02, 1e4),
    "PROJ": (functools.partial(mq.ProjectedInference, projection=mq.Softmax()), 1.02, 1e3),
}


@pytest.mark.parametrize(("solver", "rho", "end"), DEFAULTS.values(), ids=DEFAULTS)
def test_beta_grows_with_the_budget_by_default_and_as_in_the_paper_without_one(solver, rho, end):
    made, again = (
        solver(mq.Labelling(torch.nn.Linear(2, 2), [-1, 1]), functools.partial(torch.optim.SGD, lr=0.1))
        for _ in range(2)
    )
    made.iteration = 250
    assert made.beta == pytest.approx(rho**3)
    made.prepare(500)
    assert made.beta == pytest.approx(end**0.5)
    made.iteration = 500
    assert made.beta == pytest.approx(end)
    again.load_state_dict(made.state_dict())  # which knows how long the run is
    assert again.beta == made.beta


SHORT = {
    "PMF": mq.ProximalMeanField,
    "PGD": mq.SparsemaxPGD,
    "MD": mq.MirrorDescent,
    "PMF without auxiliary": functools.partial(mq.ProximalMeanField, auxiliary=False),
    "PGD without auxiliary": functools.partial(mq.SparsemaxPGD, auxiliary=False),
}


@pytest.mark.parametrize("solver", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("levels", [[-1, 1], [-1, 0, 1]], ids=["2 levels", "3 levels"])
def test_by_default_a_short_run_ends_decided_and_accurate(on_digits, solver, levels):
    model = on_digits.network()
    labelling = mq.Labelling(model, levels, which="weights", scale="channel")
    made = solver(labelling, functools.partial(torch.optim.Adam, lr=0.01))
    on_digits.train(model, made, 100)
    assert made.diagnostics()["decided"] > 0.95
    assert on_digits.accuracy(made.finalize()) > 0.88
