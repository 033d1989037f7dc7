"""Rounding solvers against enumeration, and what each of them promises about the energy."""

import itertools
from dataclasses import replace

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.rounding import SOLVERS, LayerProblem, solvers
from mrfquant.rounding.bound import lower_bound
from mrfquant.rounding.solvers import (
    RoundGPTQ,
    RoundICM,
    RoundMeanField,
    RoundNearest,
    RoundTree,
    descend,
    mean_field_sweep,
)

D = [2, 3, 4]


def _problem(n=6, rows=4, d=2, seed=0, inputs=40, group_size=None, zero_point=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(inputs, n, generator=generator, dtype=torch.float64) + 0.7  # means couple, as after a ReLU
    w = torch.randn(n, rows, generator=generator, dtype=torch.float64)
    a = x.T @ x / inputs + 0.01 * torch.eye(n, dtype=torch.float64)
    return LayerProblem.from_weights(w, a, torch.linspace(-1, 1, d, dtype=torch.float64), group_size, zero_point)


def _energy(answer):
    labels, problem = answer
    return problem.energy(problem.values(labels))


def _best(problem):
    """The least energy of each row over all labels, at the problem's scales."""
    labellings = torch.tensor(list(itertools.product(range(len(problem.levels)), repeat=problem.n)))
    return torch.stack([problem.energy(problem.values(labels[:, None])) for labels in labellings]).amin(0)


def test_energy_is_half_the_mean_squared_change_of_the_outputs():
    x, w = torch.randn(30, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    levels, group = torch.tensor([-1.0, 1.0], dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    problem = LayerProblem(w, x.T @ x / 30, levels, torch.ones_like(w), group)
    values = problem.values(torch.randint(2, (5, 3)))
    torch.testing.assert_close(problem.energy(values), (x @ (values - w)).square().mean(0) / 2)


@pytest.mark.parametrize("d", D)
@pytest.mark.parametrize("name", SOLVERS)
def test_answers_have_the_best_scale_for_their_labels(name, d):
    problem = _problem(d=d)
    labels, fitted = SOLVERS[name]().solve(problem)
    assert labels.shape == problem.w.shape
    assert (fitted.scale > 0).all()
    for factor in (0.99, 1.01):
        other = replace(fitted, scale=fitted.scale * factor)
        assert (_energy((labels, other)) >= _energy((labels, fitted))).all()


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(("group_size", "zero_point"), [(3, False), (None, True), (4, True)])
def test_answers_have_the_best_scales_and_zero_points_of_groups(name, group_size, zero_point):
    problem = _problem(n=10, d=4, group_size=group_size, zero_point=zero_point)
    labels, fitted = SOLVERS[name]().solve(problem)
    v, group = fitted.levels[labels], torch.arange(10) // (group_size or 10)
    assert (fitted.scale > 0).all()
    root = torch.linalg.cholesky(problem.a, upper=True)  # the energy is half of |root (w - w°)|²
    for row in range(problem.w.shape[1]):
        columns = [torch.where(group == g, v[:, row], 0) for g in group.unique()]
        if zero_point:
            columns += [torch.where(group == g, 1.0, 0.0).double() for g in group.unique()]
        basis = root @ torch.stack(columns, 1)
        best = basis @ torch.linalg.lstsq(basis, root @ problem.w[:, row]).solution
        least = (best - root @ problem.w[:, row]).square().sum() / 2
        torch.testing.assert_close(_energy((labels, fitted))[row], least)
    for part in (fitted.scale, fitted.zero if zero_point else fitted.scale):
        assert all(torch.equal(part[j], part[k]) for j in range(10) for k in range(10) if group[j] == group[k])


@pytest.mark.parametrize("name", SOLVERS)
def test_rows_of_zeros_stay_about_zero(name):
    problem = _problem()
    w = problem.w.clone()
    w[:, 1] = 0
    labels, fitted = SOLVERS[name]().solve(LayerProblem.from_weights(w, problem.a, problem.levels))
    assert 0 < fitted.scale[0, 1] < 1e-9
    assert _energy((labels, fitted)).isfinite().all()


def test_rows_may_be_solved_a_few_at_a_time(monkeypatch):
    problem = _problem(rows=6, d=3)
    labels, fitted = RoundTree().solve(problem)
    monkeypatch.setattr(solvers, "MAX_TREE_TENSOR", 9 * 6 * 4)  # four rows
    few = RoundTree().solve(problem)
    assert torch.equal(few[0], labels)
    torch.testing.assert_close(few[1].scale, fitted.scale)


@pytest.mark.parametrize("zero_point", [False, True])
def test_nearest_is_the_nearest_level(zero_point):
    problem = _problem(d=4, group_size=4, zero_point=zero_point)
    distances = (problem.choices() - problem.w).abs()
    assert torch.equal(RoundNearest().solve(problem)[0], distances.argmin(0))


@pytest.mark.parametrize("group_size", [None, 4])
@pytest.mark.parametrize("by_activation", [False, True])
def test_gptq_answers_every_error_by_least_squares(by_activation, group_size):
    problem = _problem(d=3, group_size=group_size)
    labels, _ = RoundGPTQ(by_activation=by_activation).solve(problem)
    order = problem.a.diagonal().argsort(descending=True) if by_activation else torch.arange(problem.n)
    a, w = problem.a[order][:, order], problem.w[order].clone()
    for j in range(problem.n):
        chosen = problem.nearest(w[j], order[j])
        assert torch.equal(labels[order][j], chosen)
        # The weights after j that minimise the energy with j and those before it fixed.
        w[j] = problem.values(chosen, order[j])
        rest = slice(j + 1, None)
        if j + 1 < problem.n:
            error = (w - problem.w[order])[: j + 1]
            w[rest] = problem.w[order][rest] - torch.linalg.solve(a[rest, rest], a[rest, : j + 1] @ error)


@pytest.mark.parametrize("d", D)
@pytest.mark.parametrize("group_size", [None, 4])
def test_icm_is_a_local_minimum_below_gptq(d, group_size):
    problem = _problem(n=8, d=d, group_size=group_size)
    labels, at = RoundICM().solve(problem)
    energy = _energy((labels, at))
    assert (energy <= _energy(RoundGPTQ().solve(problem)) + 1e-12).all()
    for j, label in itertools.product(range(problem.n), range(d)):
        other = labels.clone()
        other[j] = label
        assert (at.energy(at.values(other)) >= energy - 1e-4).all()


@pytest.mark.parametrize("d", D)
@pytest.mark.parametrize("group_size", [None, 5])
def test_tree_is_never_worse_than_mean_field_and_icm(d, group_size):
    problem = _problem(n=9, rows=20, d=d, group_size=group_size)
    tree, *others = (_energy(solver().solve(problem)) for solver in (RoundTree, RoundMeanField, RoundICM))
    for other in others:
        assert (tree <= other + 1e-9).all()


@pytest.mark.parametrize("d", [2, 3])
def test_tree_is_exact_where_the_couplings_are_a_tree(d):
    generator = torch.Generator().manual_seed(d)
    a = torch.diag(torch.rand(6, generator=generator, dtype=torch.float64) + 4)
    for j, parent in enumerate([0, 0, 1, 1, 4], start=1):
        a[j, parent] = a[parent, j] = 1.4 - 0.5 * j
    w = torch.randn(6, 10, generator=generator, dtype=torch.float64)
    problem = LayerProblem.from_weights(w, a, torch.linspace(-1, 1, d, dtype=torch.float64))
    labels, at = RoundTree(scales=[1.0]).solve(problem)
    torch.testing.assert_close(at.energy(at.values(labels)), _best(at), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("d", D)
@pytest.mark.parametrize("group_size", [None, 3])
def test_mean_field_sweeps_never_increase_the_free_energy(d, group_size):
    problem = _problem(n=7, d=d, group_size=group_size, zero_point=group_size is not None)
    beta = torch.linspace(0.5, 20, 4, dtype=torch.float64)

    u = torch.stack([_conditional(problem, problem.w, beta, j) for j in range(problem.n)], 1)
    last = None
    for _ in range(5):
        for j in range(problem.n):
            mean = (u * problem.choices()).sum(0)
            u[:, j] = _conditional(problem, mean, beta, j)
            mean = (u * problem.choices()).sum(0)
            variance = ((problem.choices() - mean).square() * u).sum(0)
            value = problem.energy(mean) + (problem.a.diagonal()[:, None] * variance).sum(0) / 2
            value = value - torch.special.entr(u).sum((0, 1)) / beta
            assert last is None or (value <= last + 1e-10).all()
            last = value
    # A sweep is that sequence of updates.
    swept, followed = (u * problem.choices()).sum(0), (u * problem.choices()).sum(0)
    mean_field_sweep(problem, swept, beta)
    for j in range(problem.n):
        followed[j] = (_conditional(problem, followed, beta, j) * problem.choices(j)).sum(0)
    torch.testing.assert_close(swept, followed)


def _conditional(problem, means, beta, j):
    """softmax(-beta E) of one variable given the means of the others, by the energy itself: (d, rows)."""
    energies = []
    for level in problem.choices(j):
        values = means.clone()
        values[j] = level
        energies.append(problem.energy(values))
    return (-beta * torch.stack(energies)).softmax(0)


def test_labels_are_improved():
    problem = _problem(n=8, d=4)
    start = RoundNearest().solve(problem)
    answer = RoundICM().improve(*start)
    assert (_energy(answer) <= _energy(start) + 1e-9).all()
    assert (_energy(answer) < _energy(start)).any()


def test_descent_keeps_what_cannot_be_improved():
    problem = _problem(n=8, d=3)
    answer = RoundICM().solve(problem)
    again = descend(answer[1], answer[0])
    assert torch.equal(again[0], answer[0])


@pytest.mark.parametrize("scales", [[], [0.0], [float("inf")]])
def test_impossible_scales_are_refused(scales):
    with pytest.raises(BadInput, match=r"RoundICM\.scales"):
        RoundICM(scales=scales)


@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("group_size", [None, 64])
def test_the_compiled_descent_ends_where_no_weight_gains_and_as_low_as_torch(monkeypatch, d, group_size):
    pytest.importorskip("numba")
    problem = _problem(n=150, rows=120, d=d, inputs=300, group_size=group_size)
    start = problem.nearest(problem.w)
    compiled = solvers._descend_labels(problem, start)
    monkeypatch.setattr(solvers, "NUMBA", False)
    plain = solvers._descend_labels(problem, start)
    assert (compiled == plain).double().mean() > 0.99  # the same steps, but for rounding
    values, curvature = problem.values(compiled), problem.a.diagonal()[:, None]
    fields = problem.a @ (values - problem.w)
    for label in range(d):
        change = problem.levels[label] * problem.scale - values
        gain = -change * (fields + curvature / 2 * change)
        assert (gain <= 1.1 * solvers.MIN_GAIN * problem.scale.square() * curvature).all()


@pytest.mark.parametrize(("d", "group_size", "zero_point"), [(2, None, False), (3, 2, False), (4, 3, True)])
def test_no_labels_have_an_energy_below_the_bound(d, group_size, zero_point):
    problem = _problem(d=d, group_size=group_size, zero_point=zero_point)
    bound = lower_bound(problem)
    assert (bound <= _best(problem) + 1e-12).all()
    assert (bound > 0.2 * _best(problem)).all()


def test_the_bound_is_the_optimum_where_there_are_no_couplings():
    problem = _problem(d=3, rows=1)
    alone = replace(problem, a=torch.diag(torch.rand(6, dtype=torch.float64) + 0.1))
    torch.testing.assert_close(lower_bound(alone), _best(alone), rtol=0.05, atol=0)


def test_kicks_never_raise_the_energy_and_the_answer_is_always_the_same():
    problem = _problem(n=40, rows=10, d=3)
    torch.manual_seed(1)
    kicked = RoundICM(kicks=20).solve(problem)
    torch.manual_seed(2)
    again = RoundICM(kicks=20).solve(problem)
    assert torch.equal(kicked[0], again[0])
    without = _energy(RoundICM(kicks=0).solve(problem))
    assert (_energy(kicked) <= without + 1e-12).all()
    assert (_energy(kicked) < without - 1e-6).any()
