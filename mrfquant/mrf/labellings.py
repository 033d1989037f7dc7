"""More than the one best labelling: the M best, diverse ones, and marginal MAP."""

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.mrf.clique_tree import CliqueTree
from mrfquant.mrf.contradiction import contradiction
from mrfquant.mrf.decomposition import min_fill
from mrfquant.mrf.exact import JunctionTree, TooWide, TorchArrays
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.solving import FieldSolverRecipe, solve

Allowed = dict[int, Tensor]  # of some variables, 0 for the labels that are allowed and -inf for others


def best_labellings(graph: FactorGraph, count: int, width_limit: float = 25) -> tuple[Tensor, Tensor]:
    """Return the labellings of least energy (M, n), the best first, and their energies (M,); M may be below `count`.

    Every labelling found splits its subproblem in two by one variable's label, as max-marginals tell which labelling
    is the next in each (Yanover and Weiss, 2004).
    """
    tree = JunctionTree(graph, width_limit=width_limit).tree
    labels, score = tree.best()
    if score == -math.inf:
        raise contradiction()
    found = [(labels, -score)]
    waiting: list[tuple[float, int, int, int, Allowed, list[int]]] = []  # energy, a number that breaks ties, v, x

    def push(allowed: Allowed, best: list[int]) -> None:
        """Add the second best labelling of a subproblem whose best is known."""
        rows = tree.restricted(allowed).max_marginals()
        others = [(s, v, x) for v, row in enumerate(rows) for x, s in enumerate(row) if x != best[v]]
        second, v, x = max(others, default=(-math.inf, 0, 0))
        if second > -math.inf:
            heapq.heappush(waiting, (-second, len(found), v, x, allowed, best))

    push({}, labels)
    while waiting and len(found) < count:
        energy, _, v, x, allowed, best = heapq.heappop(waiting)
        before = allowed.get(v, torch.zeros(tree.cards[v], dtype=graph.dtype, device=graph.device))
        only, without = torch.full_like(before, -math.inf), before.clone()
        only[x], without[x] = 0, -math.inf
        labels, _ = tree.restricted(allowed | {v: only}).best()
        found.append((labels, energy))
        push(allowed | {v: only}, labels)
        push(allowed | {v: without}, best)
    rows = torch.tensor([labels for labels, _ in found], device=graph.device)
    return rows, graph.energy(rows)


def diverse_labellings(
    graph: FactorGraph, count: int, reward: float, solver: FieldSolverRecipe, seconds: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return labellings (M, n), each of low energy and unlike those before it, and their energies (M,).

    Each minimises the energy less `reward` for every variable and earlier labelling in which its label is another
    (Batra et al., 2012).

    Args:
        graph: the field.
        count: how many.
        reward: for a label that differs; 0 gives the same labelling again.
        solver: finds each of them.
        seconds: time limit for each.
    """
    rows: list[Tensor] = []
    groups = [(group.scopes, group.tables) for group in graph.groups]
    for _ in range(count):
        used = sum((graph.one_hot(labels) for labels in rows), torch.zeros(graph.size, dtype=graph.dtype))
        unary = [(c.variables[:, None], -reward * c.planes(used)) for c in graph.by_cardinality]
        away = FactorGraph(graph.cardinalities, (), [*groups, *unary], graph.constant, graph.dtype, graph.device)
        rows.append(solve(away, solver, seconds=seconds).labels)
    labels = torch.stack(rows)
    return labels, graph.energy(labels)


def marginal_map(graph: FactorGraph, variables: Sequence[int], width_limit: float = 25) -> tuple[dict[int, int], float]:
    """Return the labels of some variables that are likeliest once all others are summed out.

    With them the logarithm of that sum of potentials: less log Z, it is their log-probability.

    All others are eliminated first, so the tables are larger than for marginals; a graph that is too wide is refused.
    """
    chosen = {graph.number(v) for v in variables}
    if not chosen:
        raise BadInput("marginal MAP needs at least one variable")
    cards, neighbours = graph.cardinalities.tolist(), graph.neighbours()
    copied = {v: set(near) for v, near in neighbours.items()}
    order, width = min_fill(copied, [math.log2(c) for c in cards], width_limit, last=chosen)
    if width > width_limit:
        raise TooWide(f"marginal MAP needs a table of 2^{width:.1f} entries or more, the limit is 2^{width_limit:g}")
    tree = CliqueTree(cards, graph.factors(), graph.constant, order, neighbours, TorchArrays(graph))
    labels, score = tree.best(summed=frozenset(range(len(graph))) - chosen)
    if score == -math.inf:
        raise contradiction()
    return {v: labels[v] for v in sorted(chosen)}, score
