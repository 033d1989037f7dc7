"""Fields on networkx graphs: Ising and Potts, the usual first examples."""

from collections.abc import Sequence

import networkx as nx
import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.mrf.clique_tree import check_memory
from mrfquant.mrf.factor_graph import FactorGraph

EDGES_PER_TABLE = 16  # on average, for edges of one coupling to share a table


def potts(
    graph: nx.Graph,
    unary: Tensor | Sequence[Sequence[float]],
    coupling: float | Tensor | Sequence[float] = 1.0,
    dtype: torch.dtype = torch.float64,
    table: Tensor | None = None,
) -> FactorGraph:
    """Build a Potts field: log-potential unary[i, x_i] of every node, and `coupling` of every edge whose ends agree.

    Edges of one coupling share one table in memory, if there are few couplings.

    Args:
        graph: its nodes, in their order, are the variables; evidence may name them.
        unary: (nodes, labels).
        coupling: one number, or one for each edge in the order of `graph.edges`.
        dtype: dtype of the log-potentials.
        table: (labels, labels), in the place of 1 where ends agree and else 0; as of label distances.
    """
    unary = torch.as_tensor(unary, dtype=dtype)
    if unary.dim() != 2 or len(unary) != len(graph):
        raise BadInput(f"unary terms of shape {tuple(unary.shape)} for {len(graph)} nodes: give (nodes, labels)")
    n, labels = unary.shape
    edges = _edges(graph)
    coupling = torch.as_tensor(coupling, dtype=dtype)
    if coupling.dim() and len(coupling) != len(edges):
        raise BadInput(f"{len(coupling)} couplings for {len(edges)} edges")
    table = torch.eye(labels, dtype=dtype) if table is None else torch.as_tensor(table, dtype=dtype)
    groups = [(torch.arange(n)[:, None], unary.t())]
    few = coupling.detach().unique()
    if coupling.dim() and not coupling.requires_grad and EDGES_PER_TABLE * len(few) <= len(edges):
        for value in few:
            chosen = edges[coupling == value]
            groups.append((chosen, (value * table)[..., None].expand(-1, -1, len(chosen))))
    else:
        if coupling.dim():
            check_memory(
                dtype.itemsize * labels**2 * len(edges),
                "the edges' tables",
                "give fewer different couplings, which share tables",
            )
        groups.append((edges, (table[..., None] * coupling).expand(labels, labels, len(edges))))
    return FactorGraph([labels] * n, groups=groups, dtype=dtype, names=graph)


def ising(
    graph: nx.Graph,
    field: float | Tensor | Sequence[float] = 0.0,
    coupling: float | Tensor | Sequence[float] = 1.0,
    dtype: torch.dtype = torch.float64,
) -> FactorGraph:
    """Build an Ising field: score sum_i field_i s_i + sum_ij coupling_ij s_i s_j, s = -1 (label 0) or 1 (label 1).

    Args:
        graph: its nodes, in their order, are the variables; evidence may name them.
        field: one number, or one for each node.
        coupling: one number, or one for each edge in the order of `graph.edges`.
        dtype: dtype of the log-potentials.
    """
    field = torch.as_tensor(field, dtype=dtype).expand(len(graph))
    spins = torch.tensor([-1.0, 1.0], dtype=dtype)
    edges = _edges(graph)
    coupling = torch.as_tensor(coupling, dtype=dtype).expand(len(edges))
    unary = (torch.arange(len(graph))[:, None], spins[:, None] * field)
    pairs = (edges, (spins[:, None] * spins)[..., None] * coupling)
    return FactorGraph([2] * len(graph), groups=[unary, pairs], dtype=dtype, names=graph)


def _edges(graph: nx.Graph) -> Tensor:
    number = {node: i for i, node in enumerate(graph)}
    pairs = [(number[a], number[b]) for a, b in graph.edges()]
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
