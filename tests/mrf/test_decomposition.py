"""Tree decompositions: valid, as thin as networkx's, refused early."""

import random

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.algorithms.approximation import treewidth_min_fill_in

from mrfquant.mrf import JunctionTree, TooWide, potts
from mrfquant.mrf.decomposition import (
    best_order,
    cliques_of,
    cuthill_mckee,
    least_width,
    min_fill,
    nested_dissection,
    width_of,
)


def decompose(graph, limit=99.0):
    return min_fill({v: set(graph[v]) for v in graph}, [1.0] * len(graph), limit)


ORDERS = {
    "min-fill": lambda near: min_fill({v: set(around) for v, around in near.items()}, [1.0] * len(near), 99.0)[0],
    "Cuthill-McKee": cuthill_mckee,
    "dissection": lambda near: nested_dissection(near, random.Random(1)),
    "best": lambda near: best_order(near, [1.0] * len(near), 99.0, 9, seconds=0.1)[0],
}


@pytest.mark.parametrize("name", ORDERS)
@given(nodes=st.integers(1, 14), density=st.floats(0, 1), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_every_edge_is_in_a_clique_and_cliques_of_a_variable_hang_together(name, nodes, density, seed):
    graph = nx.gnp_random_graph(nodes, density, seed)
    near = {v: set(graph[v]) for v in graph}
    order = ORDERS[name](near)
    assert least_width(near) <= width_of(order, near, [1.0] * nodes) - 1
    assert sorted(order) == list(graph)
    when = {v: i for i, v in enumerate(order)}
    cliques = dict(cliques_of(order, near))
    tree = nx.Graph([(v, min(around, key=when.__getitem__)) for v, around in cliques.items() if around])
    tree.add_nodes_from(graph)
    assert nx.is_forest(tree)
    assert width_of(order, near, [1.0] * nodes) == 1 + max(map(len, cliques.values()))
    for a, b in graph.edges():
        assert a in cliques[b] or b in cliques[a]
    for v in graph:
        assert nx.is_connected(tree.subgraph([w for w, around in cliques.items() if v in {w, *around}]))


def test_the_grid_that_min_fill_makes_wide_has_the_order_of_its_rows():
    grid = nx.convert_node_labels_to_integers(nx.grid_graph((20, 20)))
    near = {v: set(grid[v]) for v in grid}
    assert width_of(cuthill_mckee(near), near, [1.0] * 400) == 21
    assert best_order(near, [1.0] * 400, 25.0, 40)[1:] == (21, True)


@pytest.mark.parametrize(
    ("graph", "width"),
    [(nx.path_graph(9), 1), (nx.cycle_graph(9), 2), (nx.complete_graph(6), 5), (nx.grid_graph((4, 4)), 4)],
)
def test_known_widths(graph, width):
    graph = nx.convert_node_labels_to_integers(graph)
    assert width - 1 <= least_width({v: set(graph[v]) for v in graph}) <= width
    assert decompose(graph)[1] == width + 1


def test_on_average_as_thin_as_networkx():
    graphs = [nx.gnp_random_graph(30, 0.15, seed) for seed in range(20)]
    ours = sum(decompose(graph)[1] - 1 for graph in graphs)
    assert ours <= sum(treewidth_min_fill_in(graph)[0] for graph in graphs) + 2


def test_a_wide_graph_is_refused_before_its_tree_is_complete():
    graph = nx.convert_node_labels_to_integers(nx.grid_graph((40, 40)))
    order, width = decompose(graph, limit=10)
    assert 10 < width < 20
    assert len(order) < 1600
    with pytest.raises(TooWide, match=r"2\^(4|5)\d.\d entries, the limit is 2"):
        JunctionTree(potts(graph, torch.zeros(1600, 2)), width_limit=10)
