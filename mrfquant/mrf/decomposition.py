"""Tree decompositions: by the min-fill heuristic, or the best of many elimination orders."""

import heapq
import itertools
import time
from collections.abc import Mapping, Sequence

import networkx
import numpy as np

MAX_VARIABLES = 4000  # up to which many orders are tried
THIN_WIDTH = 12.0  # log2 of tables that are small enough
HOPELESS_WIDTH = 100.0  # log2 of tables at which an order is given up
MAX_SECONDS = 3.0  # for trying orders


def best_tree(
    neighbours: Mapping[int, set[int]], sizes: Sequence[float], limit: float, tries: int
) -> tuple[networkx.Graph, float, bool]:
    """Return the thinnest tree of several elimination orders (min-fill, smallest table first, both with random ties),
    the size of its largest clique, and whether that is exact; else it is a lower bound of the first order's.

    Args:
        neighbours: the neighbours of each variable.
        sizes: what each variable adds to the size of its cliques.
        limit: the first order may stop at this size; others are tried to the end.
        tries: the most orders, while there is time.
    """
    copied = {v: set(near) for v, near in neighbours.items()}
    tree, width = min_fill(copied, sizes, limit)
    if width > min(THIN_WIDTH, limit) and len(neighbours) <= MAX_VARIABLES and tries > 1:
        found, order = _try_orders(neighbours, sizes, tries - 1)
        if found < np.inf and (found < width or width > limit):
            return _tree_of(order, neighbours), found, True
    return tree, width, width <= limit


def _try_orders(neighbours: Mapping[int, set[int]], sizes: Sequence[float], tries: int) -> tuple[float, list[int]]:
    """Return the least width of some orders, and an order that has it; inf if none is found in time."""
    from mrfquant.kernels.elimination import eliminate
    from mrfquant.kernels.layout import COMPILED

    if not COMPILED:
        return np.inf, []
    names = list(neighbours)
    number = {v: i for i, v in enumerate(names)}
    near = np.zeros((len(names), -(-len(names) // 64)), np.uint64)
    for v, around in neighbours.items():
        for a in around:
            near[number[v], number[a] >> 6] |= np.uint64(1) << np.uint64(number[a] & 63)
    own = np.array([sizes[v] for v in names])
    state, best, chosen = np.array([1], np.uint64), (np.inf, np.inf), np.arange(len(names))
    ends = time.perf_counter() + MAX_SECONDS
    for i in range(max(2, tries)):
        order = np.empty(len(names), np.int64)
        found = eliminate(near.copy(), own, i % 4 != 1, HOPELESS_WIDTH, state, order)
        if found < best:
            best, chosen = found, order
        if time.perf_counter() > ends:
            break
    return best[0], [names[i] for i in chosen]


def _tree_of(order: Sequence[int], neighbours: Mapping[int, set[int]]) -> networkx.Graph:
    """Return the tree of an elimination order."""
    near, cliques = {v: set(around) for v, around in neighbours.items()}, []
    for v in order:
        cliques.append((v, frozenset({v, *near[v]})))
        _eliminate(v, near)
    return _joined(cliques)


def min_fill(neighbours: Mapping[int, set[int]], sizes: Sequence[float], limit: float) -> tuple[networkx.Graph, float]:
    """Eliminate variables one by one, each time one whose neighbours lack the fewest edges among each other, the
    smaller clique first; every variable with its neighbours at that time is a clique.

    Costs are updated incrementally, so it takes seconds for 100,000 variables of few neighbours. It modifies
    `neighbours`, and stops at the first clique above the limit. It returns the tree, whose nodes are frozensets of
    variables, and its largest size; the tree is incomplete if that is above the limit.
    """
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
    return _joined(cliques), largest


def _eliminate(v: int, neighbours: Mapping[int, set[int]]) -> set[int]:
    """Connect the neighbours of a variable with each other and remove it; return those whose cost may have changed."""
    around, changed = neighbours[v], set(neighbours[v])
    for a in around:
        neighbours[a].discard(v)
    for a, b in itertools.combinations(around, 2):
        if b not in neighbours[a]:
            changed |= neighbours[a] & neighbours[b]
            neighbours[a].add(b)
            neighbours[b].add(a)
    return changed


def _joined(cliques: Sequence[tuple[int, frozenset[int]]]) -> networkx.Graph:
    """Return a tree that connects each clique to that of the next of its variables to be eliminated, or to the last."""
    tree, when = networkx.Graph(), {v: i for i, (v, _) in enumerate(cliques)}
    tree.add_node(cliques[-1][1] if cliques else frozenset())
    for v, clique in cliques[:-1]:
        later = [when[a] for a in clique if a != v and a in when]
        tree.add_edge(clique, cliques[min(later, default=len(cliques) - 1)][1])
    return tree
