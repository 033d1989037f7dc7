"""Sampling, factor marginals and gradients of log Z, against enumeration and finite differences."""

import functools
import itertools
import math

import networkx as nx
import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.mrf import (
    ICM,
    BeliefPropagation,
    Enumeration,
    FactorGraph,
    Gibbs,
    JunctionTree,
    SequentialMeanField,
    TreeReweighted,
    ising,
    log_partition,
    pseudo_likelihood,
    solve,
    with_evidence,
)


def small(tables=None):
    random = torch.Generator().manual_seed(0)
    cards, scopes = [2, 3, 1, 2], [(0,), (0, 1), (1, 3), (3, 0, 2), (2,)]
    drawn = [torch.randn([cards[v] for v in s], generator=random, dtype=torch.float64) for s in scopes]
    used = drawn if tables is None else tables
    groups = [(torch.tensor([scope]), table[..., None]) for scope, table in zip(scopes, used, strict=True)]
    return FactorGraph(cards, groups=groups), drawn


def test_factor_marginals_of_the_junction_tree_are_exact():
    graph, _ = small()
    labels = torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))))
    p = graph.score(labels).softmax(0)
    for group, found in zip(graph.groups, JunctionTree(graph).run(factors=True).factor_marginals, strict=True):
        expected = torch.zeros_like(found)
        for f in range(len(group)):
            expected[..., f].index_put_(tuple(labels[:, group.scopes[f]].t()), p, accumulate=True)
        assert torch.allclose(found, expected, atol=1e-12)


def test_factor_marginals_agree_on_a_tree():
    graph = ising(nx.path_graph(6), torch.linspace(-1, 1, 6), 0.8)
    propagation = BeliefPropagation(graph)
    propagation.run(100, 1e-12)
    for one, two in zip(propagation.factor_marginals(), JunctionTree(graph).factor_marginals(), strict=True):
        assert torch.allclose(one, two, atol=1e-9)


@pytest.mark.parametrize(
    "solver",
    [JunctionTree, functools.partial(BeliefPropagation, damping=0.2), SequentialMeanField],
    ids=["exact", "Bethe", "mean-field"],
)
def test_the_gradient_of_log_z_is_that_of_finite_differences(solver):
    _, tables = small()
    parameters = [t.clone().requires_grad_() for t in tables]

    def value(*given):
        return log_partition(small(list(given))[0], solver, tolerance=1e-13)

    assert torch.autograd.gradcheck(value, parameters, eps=1e-5, atol=1e-5)


def test_tree_reweighted_gives_each_factor_its_own_gradient():
    """Also with scopes that are not sorted, and with two factors of one pair."""
    scopes = [(2, 0), (0, 1), (1, 2), (1, 0), (0,), (2,)]
    random = torch.Generator().manual_seed(1)
    cards = [2, 3, 2]
    tables = [torch.randn([cards[v] for v in s], generator=random, dtype=torch.float64) for s in scopes]

    def value(*given):
        groups = [(torch.tensor([s]), t[..., None]) for s, t in zip(scopes, given, strict=True)]
        return log_partition(FactorGraph(cards, groups=groups), TreeReweighted, tolerance=1e-12)

    assert torch.autograd.gradcheck(value, [t.requires_grad_() for t in tables], eps=1e-5, atol=1e-5)


def test_second_derivatives_of_log_z_are_refused():
    field = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(BadInput, match="first derivatives only"):
        torch.autograd.grad(log_partition(ising(nx.path_graph(4), field)), field, create_graph=True)


def test_a_solver_that_has_not_converged_is_told_of():
    graph = ising(nx.complete_graph(5), 0.3, 0.5)
    with pytest.warns(UserWarning, match="BeliefPropagation stopped after 1 iterations"):
        log_partition(graph, BeliefPropagation, iterations=1)


def test_a_constant_factor_can_be_learned():
    constant = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    groups = [(torch.zeros(1, 0, dtype=torch.int64), constant[None]), (torch.tensor([[0]]), torch.zeros(2, 1))]
    graph = FactorGraph([2], groups=groups)
    log_z, score = log_partition(graph), graph.score(torch.tensor([[0], [1]]))
    assert log_z.item() == pytest.approx(0.7 + math.log(2))
    assert torch.autograd.grad(log_z, constant)[0] == 1
    assert torch.autograd.grad(score.sum(), constant)[0] == 2


def test_couplings_are_learned_by_maximum_likelihood():
    """From exact samples of a small grid; the moments of data and model agree at the end."""
    grid = nx.grid_2d_graph(3, 3)
    data = JunctionTree(ising(grid, 0.2, 0.4)).sample(2000, seed=1)
    field, coupling = (
        torch.zeros(9, dtype=torch.float64).requires_grad_(),
        torch.zeros((), dtype=torch.float64).requires_grad_(),
    )
    optimizer = torch.optim.LBFGS([field, coupling], max_iter=30, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        graph = ising(grid, field, coupling)
        value = log_partition(graph) - graph.score(data).mean()
        value.backward()
        return value

    optimizer.step(loss)
    assert coupling.item() == pytest.approx(0.4, abs=0.05)
    assert torch.allclose(field.detach(), torch.full((9,), 0.2, dtype=torch.float64), atol=0.12)
    loss()
    assert max(field.grad.abs().max(), coupling.grad.abs()) < 1e-3


def test_log_partition_needs_a_log_z():
    with pytest.raises(BadInput, match="ICM gives no log Z"):
        log_partition(small()[0], ICM)


def test_exact_samples_and_gibbs_have_the_exact_marginals():
    graph, _ = small()
    exact = Enumeration(graph).marginals()
    samples = JunctionTree(graph).sample(20_000)
    shares = torch.stack([graph.one_hot(x) for x in samples[:2000]]).mean(0)
    assert (shares - exact).abs().max() < 0.05
    joint = torch.bincount(samples[:, 0] * 3 + samples[:, 1], minlength=6) / 20_000
    labels = torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))))
    expected = torch.bincount(labels[:, 0] * 3 + labels[:, 1], graph.score(labels).softmax(0), minlength=6)
    assert (joint - expected).abs().max() < 0.02
    assert (Gibbs(graph).run(3000).marginals - exact).abs().max() < 0.05


def test_samples_keep_hard_constraints():
    equal = torch.tensor([[0.0, -math.inf], [-math.inf, 0.5]])
    graph = FactorGraph([2] * 4, [((i, i + 1), equal) for i in range(3)])
    for labels in (JunctionTree(graph).sample(50), Gibbs(graph).run(20).labels[None]):
        assert (labels == labels[:, :1]).all()


def test_many_observations_at_once_are_those_one_by_one():
    graph, _ = small()
    evidence = [{}, {0: 1}, {1: 2, 3: 0}]
    many = solve(with_evidence(graph, evidence), JunctionTree)
    rows = with_evidence(graph, evidence).per_variable(many.marginals)
    for k, given in enumerate(evidence):
        alone = graph.per_variable(solve(graph, JunctionTree, given).marginals)
        for row, expected in zip(rows[4 * k : 4 * k + 4], alone, strict=True):
            assert row == pytest.approx(expected, abs=1e-9)
    with pytest.raises(BadInput, match="evidence 1 gives variable 9 the label 0"):
        with_evidence(graph, [{}, {9: 0}])


def test_pseudo_likelihood_is_that_of_conditionals_and_finds_the_truth():
    graph, _ = small()
    data = torch.tensor([[0, 2, 0, 1], [1, 0, 0, 0]])
    expected = 0.0
    for x in data.tolist():
        for v, c in enumerate(graph.cardinalities.tolist()):
            others = torch.tensor([[*x[:v], label, *x[v + 1 :]] for label in range(c)])
            expected += graph.score(others).log_softmax(0)[x[v]].item() / 2
    assert pseudo_likelihood(graph, data).item() == pytest.approx(expected)

    grid = nx.grid_2d_graph(3, 3)
    drawn = JunctionTree(ising(grid, 0.2, 0.4)).sample(3000, seed=1)
    learned = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([learned], max_iter=20, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -pseudo_likelihood(ising(grid, learned[0], learned[1]), drawn)
        value.backward()
        return value

    optimizer.step(loss)
    assert learned.tolist() == pytest.approx([0.2, 0.4], abs=0.05)


def test_messages_are_read_set_and_taken_along_to_other_evidence():
    graph = ising(nx.grid_2d_graph(3, 3), torch.linspace(-1, 1, 9), 0.3)
    solver = BeliefPropagation(graph)
    solver.run(200, 1e-12)
    other = BeliefPropagation(graph, seed=7)
    other.messages = solver.messages
    assert other.step() < 1e-11
    assert torch.allclose(other.marginals(), solver.marginals())
    with pytest.raises(BadInput, match="messages of shapes"):
        other.messages = [[torch.zeros(2, 3)]]
    solver.observe({4: 1, 0: [0.3, 0.9]})
    again = solver.run(200, 1e-12)
    fresh = solve(graph, BeliefPropagation, {4: 1, 0: [0.3, 0.9]}, 500, 1e-12)
    assert torch.allclose(again.marginals, fresh.marginals, atol=1e-9)
    solver.observe({})
    assert torch.allclose(solver.run(200, 1e-12).marginals, other.marginals(), atol=1e-9)
