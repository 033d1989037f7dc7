"""Marginals as layers: against enumeration, solvers of fields and finite differences."""

import itertools

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.mrf import BeliefPropagation, FactorGraph, SequentialMeanField, TreeReweighted
from mrfquant.mrf.layers import crf_belief_propagation, crf_mean_field, grid_edges

TREE = torch.tensor([(0, 1), (2, 1), (1, 3), (4, 3)])


def potentials(edges, batch=2, labels=3, scale=1.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    n = int(edges.max()) + 1
    unary = torch.randn(batch, n, labels, generator=random, dtype=torch.float64)
    return unary, scale * torch.randn(len(edges), labels, labels, generator=random, dtype=torch.float64)


def exact(unary, edges, pairs):
    """Marginals by listing all labellings, differentiable."""
    n, c = unary.shape[1:]
    every = torch.tensor(list(itertools.product(range(c), repeat=n)))
    score = unary[:, torch.arange(n), every].sum(-1)
    for edge, table in zip(edges.tolist(), pairs, strict=True):
        score = score + table[every[:, edge[0]], every[:, edge[1]]]
    return score.softmax(-1) @ torch.nn.functional.one_hot(every, c).to(unary).flatten(1)


def graph_of(unary, edges, pairs):
    n, c = unary.shape
    return FactorGraph([c] * n, groups=[(torch.arange(n)[:, None], unary.t()), (edges, pairs.permute(1, 2, 0))])


@pytest.mark.parametrize("weights", [1.0, torch.ones(4)])
def test_belief_propagation_is_exact_on_trees_with_its_gradient(weights):
    unary, pairs = (p.requires_grad_() for p in potentials(TREE))
    found = crf_belief_propagation(unary, TREE, pairs, weights)
    expected = exact(unary, TREE, pairs).view_as(found)
    assert torch.allclose(found, expected, atol=1e-12)
    pull = torch.randn_like(found)
    for one, two in zip(
        torch.autograd.grad(found, (unary, pairs), pull),
        torch.autograd.grad(expected, (unary, pairs), pull),
        strict=True,
    ):
        assert torch.allclose(one, two, atol=1e-10)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3, 3), (2, 5, 3, 3)])
@pytest.mark.parametrize("layer", [crf_mean_field, crf_belief_propagation])
def test_gradients_are_those_of_finite_differences(layer, shape):
    cycle = torch.tensor([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    unary, _ = potentials(cycle)
    pairs = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = (unary.requires_grad_(), pairs.requires_grad_())
    assert torch.autograd.gradcheck(lambda u, p: layer(u, cycle, p, iterations=4), given)


def test_the_gradient_at_the_fixed_point_is_that_through_the_iterations():
    edges = grid_edges(3, 3)
    given = [p.requires_grad_() for p in potentials(edges, scale=0.3)]
    pull = torch.randn(2, 9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    through, at = (
        torch.autograd.grad(crf_belief_propagation(given[0], edges, given[1], 0.7, 200, implicit=way), given, pull)
        for way in (False, True)
    )
    for one, two in zip(through, at, strict=True):
        assert torch.allclose(one, two, atol=1e-8)


def test_layers_agree_with_the_solvers_of_fields():
    edges = grid_edges(3, 4)
    unary, pairs = potentials(edges, scale=0.3)
    for k in range(2):
        graph = graph_of(unary[k], edges, pairs)
        propagation = BeliefPropagation(graph).run(500, 1e-12).marginals
        mean_field = SequentialMeanField(graph).run(2000, 1e-13).marginals
        for found, expected in (
            (crf_belief_propagation(unary, edges, pairs, iterations=300), propagation),
            (crf_mean_field(unary, edges, pairs, iterations=500), mean_field),
        ):
            assert torch.allclose(found[k].t().reshape(-1), expected, atol=1e-6)
    solver = TreeReweighted(graph)
    expected = solver.run(2000, 1e-12).marginals
    weights = {tuple(s): w for s, w in zip(graph.couplings[0].scopes.tolist(), solver._w[0].tolist(), strict=True)}
    rho = torch.tensor([weights[tuple(edge)] for edge in edges.tolist()])
    found = crf_belief_propagation(unary, edges, pairs, rho, iterations=2000, damping=0.5)
    assert torch.allclose(found[1].t().reshape(-1), expected, atol=1e-6)


def test_shapes_that_do_not_fit_are_refused():
    unary, pairs = potentials(TREE)
    with pytest.raises(BadInput, match=r"pairs of shape \(3, 3, 3\) for 4 edges and 3 labels, expected"):
        crf_mean_field(unary, TREE, pairs[:3])
    with pytest.raises(BadInput, match="expected \\(batch, variables, labels\\)"):
        crf_belief_propagation(unary[0], TREE, pairs)
