"""Tree decompositions: valid, as thin as networkx's, refused early."""

import itertools

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.algorithms.approximation import treewidth_min_fill_in

from mrfquant.mrf import JunctionTree, TooWide, potts
from mrfquant.mrf.decomposition import min_fill


def decompose(graph, limit=99.0):
    return min_fill({v: set(graph[v]) for v in graph}, [1.0] * len(graph), limit)


@given(nodes=st.integers(1, 14), density=st.floats(0, 1), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_every_edge_is_in_a_clique_and_cliques_of_a_variable_hang_together(nodes, density, seed):
    graph = nx.gnp_random_graph(nodes, density, seed)
    tree, width = decompose(graph)
    assert nx.is_tree(tree)
    assert width == max(map(len, tree))
    for edge in graph.edges():
        assert any(set(edge) <= clique for clique in tree)
    for v in graph:
        assert nx.is_connected(tree.subgraph([clique for clique in tree if v in clique]))


@pytest.mark.parametrize(
    ("graph", "width"),
    [(nx.path_graph(9), 1), (nx.cycle_graph(9), 2), (nx.complete_graph(6), 5), (nx.grid_graph((4, 4)), 4)],
)
def test_known_widths(graph, width):
    graph = nx.convert_node_labels_to_integers(graph)
    assert decompose(graph)[1] == width + 1


def test_on_average_as_thin_as_networkx():
    graphs = [nx.gnp_random_graph(30, 0.15, seed) for seed in range(20)]
    ours = sum(decompose(graph)[1] - 1 for graph in graphs)
    assert ours <= sum(treewidth_min_fill_in(graph)[0] for graph in graphs) + 2


def test_a_wide_graph_is_refused_before_its_tree_is_complete():
    graph = nx.convert_node_labels_to_integers(nx.grid_graph((40, 40)))
    tree, width = decompose(graph, limit=10)
    assert 10 < width < 20
    assert len(set(itertools.chain(*tree))) <= 1600
    with pytest.raises(TooWide, match=r"2\^(4|5)\d.\d entries, the limit is 2"):
        JunctionTree(potts(graph, torch.zeros(1600, 2)), width_limit=10)
