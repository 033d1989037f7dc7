"""The M best labellings, diverse ones, marginal MAP and annealed importance sampling, against enumeration."""

import itertools
import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadInput
from mrfquant.mrf import (
    FactorGraph,
    JunctionTree,
    TooWide,
    best_labellings,
    diverse_labellings,
    ising,
    marginal_map,
    sample_log_z,
)
from mrfquant.testing import fields


def every(graph):
    return torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))))


@pytest.mark.parametrize("name", fields.THIRD)
def test_the_best_labellings_are_those_of_a_list_of_all(name):
    graph = fields.field(name)
    energies = graph.energy(every(graph)).sort().values
    labels, found = best_labellings(graph, 12)
    assert torch.allclose(found, energies[:12])
    assert len(labels.unique(dim=0)) == 12
    assert torch.equal(graph.energy(labels), found)


def test_there_are_no_more_labellings_than_are_allowed():
    equal = torch.tensor([[0.0, -math.inf], [-math.inf, 0.5]])
    labels, energies = best_labellings(FactorGraph([2] * 3, [((0, 1), equal), ((1, 2), equal)]), 9)
    assert labels.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert energies.tolist() == [-1.0, 0.0]


def test_diverse_labellings_trade_energy_for_difference():
    graph = fields.field("grid-3-random")
    labels, energies = diverse_labellings(graph, 3, 0.7, JunctionTree)
    rest = every(graph)
    for k in range(3):
        away = sum(((rest != labels[j]).sum(1) for j in range(k)), torch.zeros(len(rest)))
        best = (graph.energy(rest) - 0.7 * away).argmin()
        assert torch.equal(labels[k], rest[best])
    assert len(labels.unique(dim=0)) == 3
    assert torch.equal(graph.energy(labels), energies)


@given(st.sampled_from(fields.NAMES), st.integers(1, 15))
@settings(max_examples=40, deadline=None)
def test_marginal_map_maximises_the_sum_over_the_others(name, bits):
    graph = fields.field(name)
    chosen = [v for v in range(4) if bits >> v & 1]
    sums: dict = {}
    for labels, score in zip(every(graph).tolist(), graph.score(every(graph)).tolist(), strict=True):
        key = tuple(labels[v] for v in chosen)
        sums[key] = sums.get(key, 0.0) + math.exp(score)
    found, log_sum = marginal_map(graph, chosen)
    assert sums[tuple(found.values())] == pytest.approx(max(sums.values()))
    assert log_sum == pytest.approx(math.log(max(sums.values())))
    assert list(found) == chosen


def test_marginal_map_refuses_what_is_too_wide():
    star = ising(nx.star_graph(30), coupling=0.3)  # a tree, but the centre joins all the leaves
    with pytest.raises(TooWide, match=r"2\^31.0 entries or more"):
        marginal_map(star, range(1, 31))
    with pytest.raises(BadInput, match="at least one"):
        marginal_map(star, [])


@pytest.mark.parametrize("name", ["grid-mixed-random", "full-3-attractive", "tree-2-repulsive"])
def test_annealed_importance_sampling_has_log_z_within_its_error(name):
    graph = fields.field(name)
    log_z, error = sample_log_z(graph, chains=200, temperatures=100)
    assert 0 < error < 0.1
    assert abs(log_z - fields.truth(name).log_z) < 4 * error
    with pytest.raises(BadInput, match="without hard"):
        sample_log_z(fields.field("tree-2-constrained"))
