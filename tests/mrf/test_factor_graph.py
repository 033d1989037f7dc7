"""Energies, expectations and transformations of factor graphs against plain loops."""

import itertools
import math
import re

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadInput
from mrfquant.mrf import Contradiction, Enumeration, FactorGraph, clique_tree, ising, potts, solve


def random_graph(seed, hard=False):
    """Factors of one to three variables, some over the same ones in another order, and a constant."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(1, 4, (5,), generator=random).tolist()
    scopes = [[0], [3], [0, 1], [1, 0], [4, 2], [2, 4], [0, 2, 3], [3, 2, 0], [1, 2, 4], []]
    factors = []
    for scope in scopes:
        table = torch.randn([labels[v] for v in scope], generator=random, dtype=torch.float64)
        if hard and table.numel() > 1:
            table.view(-1)[-1] = -math.inf
        factors.append((scope, table))
    return FactorGraph(labels, factors), factors


def labellings(graph):
    return torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))), dtype=torch.int64)


def random_u(graph, seed):
    noise = torch.randn(graph.size, generator=torch.Generator().manual_seed(seed), dtype=graph.dtype)
    return graph.softmax(noise)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_score_is_the_sum_of_the_factors(seed, hard):
    graph, factors = random_graph(seed, hard)
    every = labellings(graph)
    scores = graph.score(every)
    for x, score in zip(every.tolist(), scores.tolist(), strict=True):
        assert score == pytest.approx(sum(table[tuple(x[v] for v in scope)].item() for scope, table in factors))
    assert graph.num_factors == 9
    assert sorted(s for s, _ in graph.factors()) == sorted(s for s, _ in factors if s)


@pytest.mark.parametrize("seed", range(5))
def test_expected_score_is_the_mean_over_labellings_and_fields_its_gradient(seed):
    graph, _ = random_graph(seed)
    u = random_u(graph, seed)
    rows, every = graph.per_variable(u), labellings(graph)
    p = torch.tensor([math.prod(rows[v][label] for v, label in enumerate(x)) for x in every.tolist()])
    assert graph.expected_score(u).item() == pytest.approx((p * graph.score(every)).sum().item())
    u.requires_grad_()
    (gradient,) = torch.autograd.grad(graph.expected_score(u), u)
    assert torch.allclose(graph.fields(u.detach()), gradient)
    assert graph.factorised_bound(u.detach()) <= graph.score(every).logsumexp(0).item()


def test_what_has_no_probability_may_be_forbidden():
    graph, _ = random_graph(1, hard=True)
    every = labellings(graph)
    allowed = every[graph.score(every).argmax()]
    assert graph.expected_score(graph.one_hot(allowed)).item() == pytest.approx(graph.score(allowed).item())
    assert graph.expected_score(graph.uniform()).item() == -math.inf
    assert graph.factorised_bound(graph.uniform()) == -math.inf
    soft = graph.without_hard_constraints()
    assert torch.isfinite(soft.score(every)).all()
    assert soft.score(allowed) == graph.score(allowed)
    possible = graph.score(every).isfinite()
    assert soft.score(every)[possible].min() > soft.score(every)[~possible].max()


@given(seed=st.integers(0, 1000), observed=st.sets(st.integers(0, 4)), hard=st.booleans())
@settings(max_examples=60, deadline=None)
def test_conditioning_keeps_the_score(seed, observed, hard):
    graph, _ = random_graph(seed, hard)
    every = labellings(graph)
    x = every[graph.score(every).argmax()]
    reduced, kept = graph.condition({v: int(x[v]) for v in observed})
    assert kept.tolist() == [v for v in range(5) if v not in observed]
    for rest in labellings(reduced):
        whole = x.clone()
        whole[kept] = rest
        assert reduced.score(rest).item() == pytest.approx(graph.score(whole).item())


@pytest.mark.parametrize("seed", range(5))
def test_merging_keeps_the_score_with_one_factor_per_set_of_variables(seed):
    graph, _ = random_graph(seed)
    merged = graph.merged()
    assert torch.allclose(merged.score(labellings(graph)), graph.score(labellings(graph)))
    assert sorted(s for s, _ in merged.factors()) == [[0], [0, 1], [0, 2, 3], [1, 2, 4], [2, 4], [3]]


def test_flat_vectors_go_forth_and_back():
    graph, _ = random_graph(3)
    u = random_u(graph, 0)
    assert torch.equal(graph.flat(graph.per_variable(u)), u)
    x = torch.tensor([c - 1 for c in graph.cardinalities.tolist()])
    assert torch.equal(graph.argmax(graph.one_hot(x)), x)
    assert graph.entropy(u).item() == pytest.approx(-sum(p * math.log(p) for r in graph.per_variable(u) for p in r))


def test_ising_and_potts_count_edges():
    grid = nx.grid_2d_graph(2, 3)
    field, coupling = torch.arange(6.0), torch.arange(1.0, 8.0)
    spins = torch.tensor([0, 1, 1, 0, 1, 0])
    s = {node: 2 * x - 1 for node, x in zip(grid, spins.tolist(), strict=True)}
    expected = sum(f * v for f, v in zip(field.tolist(), s.values(), strict=True))
    expected += sum(c * s[a] * s[b] for c, (a, b) in zip(coupling.tolist(), grid.edges(), strict=True))
    assert ising(grid, field, coupling).score(spins).item() == pytest.approx(expected)
    unary = torch.rand(6, 3)
    x = torch.tensor([0, 2, 2, 1, 2, 2])
    named = dict(zip(grid, x.tolist(), strict=True))
    expected = unary[range(6), x].sum().item() + 0.7 * sum(named[a] == named[b] for a, b in grid.edges())
    assert potts(grid, unary, 0.7).score(x).item() == pytest.approx(expected)


def test_edges_of_one_coupling_share_a_table_of_label_distances(monkeypatch):
    grid, steps = nx.grid_2d_graph(8, 8), torch.arange(5.0)
    table = -(steps[:, None] - steps).abs().clamp(max=2)
    coupling = [1.0, 3.0] * (grid.number_of_edges() // 2)
    graph = potts(grid, torch.zeros(64, 5), coupling, table=table)
    assert graph.stored_entries == 50
    labels = torch.randint(5, (64,), generator=torch.Generator().manual_seed(0))
    at = dict(zip(grid, labels.tolist(), strict=True))
    expected = sum(c * table[at[a], at[b]].item() for c, (a, b) in zip(coupling, grid.edges(), strict=True))
    assert graph.score(labels).item() == pytest.approx(expected)
    monkeypatch.setattr(clique_tree, "free_memory", lambda: 10**4)
    with pytest.raises(BadInput, match=r"the edges' tables would need 0.0 GB, 0.0 GB are free: give fewer different"):
        potts(grid, torch.zeros(64, 5), torch.arange(112.0), table=table)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FactorGraph([2, 0]), "whole numbers of at least 1"),
        (lambda: FactorGraph([2], [([1], [0.0, 0.0])]), "a factor over variables [1]: there are the variables 0 to 0"),
        (lambda: FactorGraph([2, 2], [([1, 1], torch.zeros(2, 2))]), "one appears twice"),
        (lambda: FactorGraph([2, 3], [([0, 1], torch.zeros(3, 2))]), "has a table of 3x2, expected 2x3"),
        (lambda: FactorGraph([2, 3], [([0, 1], torch.zeros(6))]), "a table of 1 dimensions"),
        (lambda: FactorGraph([2], [([0], [0.0, math.nan])]), "not a number or infinite"),
        (lambda: FactorGraph([2], [([0], [0.0, math.inf])]), "not a number or infinite"),
        (lambda: FactorGraph([2], [([0], [-math.inf, -math.inf])]), "is 0 everywhere"),
        (lambda: FactorGraph([2], [([], torch.tensor(-math.inf))]), "a constant factor is 0"),
        (lambda: FactorGraph([2]).condition({1: 0}), "evidence on variable 1: there are the variables 0 to 0"),
        (lambda: FactorGraph([2]).condition({0: 2}), "gives variable 0 the label 2: it has the labels 0 to 1"),
        (lambda: FactorGraph([2], [([0], [0.0, -math.inf])]).condition({0: 1}), "the evidence contradicts"),
        (lambda: potts(nx.path_graph(3), torch.zeros(2, 2)), "for 3 nodes"),
        (lambda: potts(nx.path_graph(3), torch.zeros(3, 2), [1.0]), "1 couplings for 2 edges"),
    ],
)
def test_bad_input_is_one_sentence(build, message):
    with pytest.raises(BadInput, match=re.escape(message)) as error:
        build()
    assert "\n" not in str(error.value)


def test_contradictions_are_told_apart():
    with pytest.raises(Contradiction):
        FactorGraph([2], [([0], [-math.inf, -math.inf])])


def test_evidence_is_a_label_or_likelihoods_and_names_its_variable_as_the_graph_does():
    graph = ising(nx.grid_2d_graph(2, 2), field=[0.1, -0.3, 0.5, 0.2], coupling=0.4)
    by_number = solve(graph, Enumeration, {1: 0})
    for evidence in ({np.int64(1): np.int64(0)}, {(0, 1): torch.tensor(0)}, {torch.tensor(1): 0}):
        assert torch.equal(solve(graph, Enumeration, evidence).marginals, by_number.marginals)
    likelihood = [0.2, 0.6]
    p = torch.tensor([solve(graph, Enumeration, {1: x}).log_z for x in range(2)]).exp() * torch.tensor(likelihood)
    soft = solve(graph, Enumeration, {(0, 1): likelihood})
    assert graph.per_variable(soft.marginals)[1] == pytest.approx((p / p.sum()).tolist())
    assert soft.log_z == pytest.approx(p.sum().log().item())
    assert graph.per_variable(solve(graph, Enumeration, {1: [0.0, 2.0]}).marginals)[1] == [0, 1]
    for evidence, message in (
        ({(5, 5): 0}, r"evidence on \(5, 5\): no variable has this name"),
        ({1: [0.1, 0.2, 0.3]}, "expected 2 numbers"),
        ({1: [-1.0, 2.0]}, "of at least 0"),
    ):
        with pytest.raises(BadInput, match=message):
            solve(graph, Enumeration, evidence)
