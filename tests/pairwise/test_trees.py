"""Inference on spanning trees against enumeration and scipy-free truths."""

import itertools

import networkx
import pytest
import torch

from mrfquant.kernels import dispatch
from mrfquant.pairwise import trees
from mrfquant.pairwise.trees import SpanningTree

SHAPES = {
    "chain": [-1, 0, 1, 2],
    "star": [1, -1, 1, 1, 1],
    "mixed": [2, 0, -1, 2, 3, 0],
    "one": [-1],
    "two trees": [-1, 0, 3, -1, 3, 0],
}


def _enumerate(parents, logits, x, couplings):
    """All labellings (count, n) and their log-weights (count, rows)."""
    d, n, _ = logits.shape
    x = x.expand_as(logits)
    labellings = torch.tensor(list(itertools.product(range(d), repeat=n)))
    weights = []
    for labels in labellings:
        weight = sum(logits[labels[j], j] for j in range(n))
        for j, parent in enumerate(parents):
            if parent >= 0:
                weight = weight - couplings[j] * x[labels[j], j] * x[labels[parent], parent]
        weights.append(weight)
    return labellings, torch.stack(weights)


@pytest.mark.parametrize("parents", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("shared", [True, False], ids=["shared values", "own values"])
def test_both_products_equal_enumeration(parents, d, shared):
    torch.manual_seed(d)
    n, rows = len(parents), 3
    logits, couplings = (torch.randn(*shape, dtype=torch.float64) for shape in ((d, n, rows), (n, rows)))
    x = torch.randn(d, *((1, 1) if shared else (n, rows)), dtype=torch.float64)
    labellings, weights = _enumerate(parents, logits, x, couplings)
    tree = SpanningTree(parents)
    marginals, log_normaliser = tree.sum_product(logits, x, couplings)
    torch.testing.assert_close(log_normaliser, weights.logsumexp(0), rtol=1e-10, atol=1e-10)
    p = weights.softmax(0)
    for j in range(n):
        for label in range(d):
            torch.testing.assert_close(marginals[label, j], p[labellings[:, j] == label].sum(0), rtol=1e-8, atol=1e-10)
    assert torch.equal(tree.max_product(logits, x, couplings), labellings[weights.argmax(0)].T)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("parents", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("scaled", [True, False])
def test_marginals_of_two_labels_equal_enumeration(monkeypatch, parents, scaled, compiled):
    monkeypatch.setattr(trees, "MIN_COMPILED_SIZE", 0 if compiled else 10**9)
    torch.manual_seed(len(parents))
    n, rows = len(parents), 37  # more than are done at once
    fields, couplings, factors = torch.randn(rows, n), torch.randn(n), torch.rand(rows) * 3
    scale = torch.rand(rows, n) + 0.5 if scaled else None
    if compiled:
        pytest.importorskip("numba")
        assert dispatch.usable(fields, smallest=0)
    found = SpanningTree(parents).pair_marginals(fields, couplings, factors, scale)
    logits, x = torch.stack([-fields.T, fields.T]).double(), torch.ones(n, rows) if scale is None else scale.T
    x = torch.stack([-x, x]).double()
    labellings, weights = _enumerate(parents, logits, x, (couplings[:, None] * factors).double())
    signs = 2.0 * labellings - 1
    torch.testing.assert_close(found.double(), weights.softmax(0).T @ signs.double(), rtol=1e-5, atol=1e-6)


def test_compiled_marginals_keep_their_precision_when_labels_are_decided():
    pytest.importorskip("numba")
    torch.manual_seed(0)
    tree, beta = SpanningTree.strongest(torch.randn(60, 60)), 1e4
    fields, couplings, factors = torch.randn(20, 60), torch.randn(60), torch.rand(20)
    found = tree.pair_marginals(fields * beta, couplings, factors * beta)
    exact = tree.pair_marginals(fields.double() * beta, couplings.double(), factors.double() * beta)
    assert (exact.abs() > 0.999).double().mean() > 0.9
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-2)  # of logits of 1e4, in float32
    assert torch.equal(found > 0, exact > 0)


def test_without_couplings_marginals_are_softmax():
    logits = torch.randn(4, 6, 5, dtype=torch.float64)
    marginals, _ = SpanningTree(SHAPES["mixed"]).sum_product(logits, torch.ones(4, 1, 1), torch.zeros(6, 5))
    torch.testing.assert_close(marginals, logits.softmax(0))


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_the_strongest_tree_is_networkx_s(n):
    torch.manual_seed(n)
    couplings = torch.randn(n, n, dtype=torch.float64)
    couplings = couplings + couplings.T
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from((i, j, abs(couplings[i, j].item())) for i, j in itertools.combinations(range(n), 2))
    expected = networkx.maximum_spanning_tree(graph)
    tree = SpanningTree.strongest(couplings)
    assert {frozenset(edge) for edge in tree.edges} == {frozenset(edge) for edge in expected.edges}


def test_couplings_of_zero_still_make_a_tree():
    assert len(SpanningTree.strongest(torch.zeros(5, 5)).edges) == 4
