"""Tree decompositions by the min-fill heuristic."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence

import networkx


def min_fill(neighbours: Mapping[int, set[int]], sizes: Sequence[float], limit: float) -> tuple[networkx.Graph, float]:
    """Eliminate variables one by one, each time one whose neighbours lack the fewest edges among each other, the
    smaller clique first; every variable with its neighbours at that time is a clique.

    Counts are kept up to date, so that it takes seconds for 100,000 variables of few neighbours, and it stops at the
    first clique above the limit, so that a wide one is refused early.

    Args:
        neighbours: of each variable; used up. sizes: what each variable adds to the size of its cliques.

    Returns:
        The tree, whose nodes are frozensets of variables, and its largest size; the tree is not complete if that is
        above the limit.
    """
    tree = networkx.Graph()
    cliques: list[tuple[int, frozenset[int]]] = []
    largest = 0.0

    def cost(v: int) -> tuple[int, float, int]:
        around = neighbours[v]
        joined = sum(len(around & neighbours[a]) for a in around)  # runs over the smaller of the two
        missing = (len(around) * (len(around) - 1) - joined) // 2
        return missing, sizes[v] + sum(sizes[a] for a in around), v

    current = {v: cost(v) for v in neighbours}
    heap = list(current.values())
    heapq.heapify(heap)
    while heap:
        entry = heapq.heappop(heap)
        v = entry[2]
        if current.get(v) != entry:
            continue  # gone, or out of date
        del current[v]
        largest = max(largest, entry[1])
        cliques.append((v, frozenset({v, *neighbours[v]})))
        if largest > limit:
            break
        for changed in _eliminate(v, neighbours):
            current[changed] = cost(changed)
            heapq.heappush(heap, current[changed])
    _join(tree, cliques)
    return tree, largest


def _eliminate(v: int, neighbours: Mapping[int, set[int]]) -> set[int]:
    """Connect the neighbours of a variable with each other and take it out; gives those whose cost may differ now."""
    around, changed = neighbours[v], set(neighbours[v])
    for a in around:
        neighbours[a].discard(v)
    for a, b in itertools.combinations(around, 2):
        if b not in neighbours[a]:
            changed |= neighbours[a] & neighbours[b]
            neighbours[a].add(b)
            neighbours[b].add(a)
    return changed


def _join(tree: networkx.Graph, cliques: Sequence[tuple[int, frozenset[int]]]) -> None:
    """Tie each clique to that of the first of its other variables to go; parts that do not touch, to each other."""
    when = {v: i for i, (v, _) in enumerate(cliques)}
    tree.add_node(cliques[-1][1] if cliques else frozenset())
    for v, clique in cliques[:-1]:
        later = [when[a] for a in clique if a != v and a in when]
        tree.add_edge(clique, cliques[min(later, default=len(cliques) - 1)][1])
