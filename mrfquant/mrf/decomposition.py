"""Elimination orders: min-fill, and for fields that are not thin the best of many others.

Eliminating variables one after the other gives a tree of cliques: a variable's clique is the variable with those of
its neighbours that are still there, where eliminated variables have joined their neighbours (`cliques_of`).
"""

import heapq
import itertools
import random
import time
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np

MAX_VARIABLES = 4000  # up to which orders with random ties are tried
MAX_ORDERED = 10**5  # up to which any others are tried
THIN_WIDTH = 12.0  # log2 of tables that are small enough
FAR = 10.0  # from the limit: if Cuthill and McKee's order is so much wider, others will not fit either
HOPELESS_WIDTH = 100.0  # log2 of tables at which an order is given up
SMALL_PIECE = 4  # variables that nested dissection does not divide any more

Neighbours = Mapping[int, set[int]]


def best_order(
    neighbours: Neighbours, sizes: Sequence[float], limit: float, tries: int, seconds: float = 2.0
) -> tuple[list[int], float, bool]:
    """Return the thinnest of several elimination orders, the size of its largest clique, and whether that is exact.

    Otherwise the size is a lower bound of the first order's. Orders are min-fill, reverse Cuthill-McKee, nested
    dissection, and min-fill and smallest table with random ties.

    Args:
        neighbours: the neighbours of each variable.
        sizes: what each variable adds to the size of its cliques.
        limit: the first order may stop at this size; others are tried to the end.
        tries: the most orders, while there is time.
        seconds: time for trying.
    """
    least = min((sizes[v] for v in neighbours), default=0.0)
    if (bound := least * (1 + least_width(neighbours, limit / max(least, 1e-9)))) > limit:
        return [], bound, False
    order, width = min_fill({v: set(near) for v, near in neighbours.items()}, sizes, limit)
    if width <= min(THIN_WIDTH, limit) or len(neighbours) > MAX_ORDERED or tries < 2:
        return order, width, width <= limit
    known, ends = width <= limit, time.perf_counter() + seconds
    for other in itertools.islice(_other_orders(neighbours, sizes, tries - 1, ends), tries - 1):
        found = width_of(other, neighbours, sizes, width if known else np.inf)
        if found < width or not known:
            order, width, known = other, found, True
        if time.perf_counter() > ends or width > limit + FAR:
            break
    return order, width, known


def least_width(neighbours: Neighbours, enough: float = np.inf) -> int:
    """Return a lower bound on the number of neighbours that some variable has when it is eliminated, in any order.

    It is the largest least degree of graphs in which, one after the other, a variable of least degree is joined with
    its neighbour of least degree (contraction degeneracy: Bodlaender and Koster, 2011); done when it is `enough`.
    """
    near = {v: set(around) for v, around in neighbours.items()}
    heap = [(len(around), v) for v, around in near.items()]
    heapq.heapify(heap)
    most = 0
    while heap and most < enough:
        count, v = heapq.heappop(heap)
        if v not in near or len(near[v]) != count:
            continue
        most = max(most, count)
        around = near.pop(v)
        for a in around:
            near[a].discard(v)
        if around:
            other = min(around, key=lambda a: (len(near[a]), a))
            for a in around - {other}:
                near[a].add(other)
                near[other].add(a)
        for a in around:
            heapq.heappush(heap, (len(near[a]), a))
    return most


def _other_orders(neighbours: Neighbours, sizes: Sequence[float], tries: int, ends: float) -> Iterator[list[int]]:
    """Yield orders that may be thinner than min-fill's."""
    yield cuthill_mckee(neighbours)
    draw = random.Random(0)
    yield nested_dissection(neighbours, draw)
    if len(neighbours) <= MAX_VARIABLES:
        yield from _random_ties(neighbours, sizes, tries // 2, ends)
    while True:
        yield nested_dissection(neighbours, draw)


def cliques_of(order: Sequence[int], neighbours: Neighbours) -> Iterator[tuple[int, set[int]]]:
    """Yield each variable in its turn, with its neighbours when it is eliminated."""
    when = {v: i for i, v in enumerate(order)}
    joined: list[set[int]] = [set() for _ in order]  # what eliminated variables leave to the next of their neighbours
    for i, v in enumerate(order):
        around = {a for a in neighbours[v] if when[a] > i} | joined[i]
        around.discard(v)
        joined[i] = set()
        if around:
            joined[min(when[a] for a in around)] |= around
        yield v, around


def width_of(order: Sequence[int], neighbours: Neighbours, sizes: Sequence[float], limit: float = np.inf) -> float:
    """Return the size of the largest clique of an order, or the first that is not below the limit."""
    largest = 0.0
    for v, around in cliques_of(order, neighbours):
        largest = max(largest, sizes[v] + sum(sizes[a] for a in around))
        if largest >= limit:
            break
    return largest


def cuthill_mckee(neighbours: Neighbours) -> list[int]:
    """Return the reverse Cuthill-McKee order: of a grid, row by row."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    names = list(neighbours)
    number = {v: i for i, v in enumerate(names)}
    columns = np.array([number[a] for near in neighbours.values() for a in near], np.int32)
    ends = np.cumsum([0, *map(len, neighbours.values())]).astype(np.int32)
    matrix = csr_array((np.ones(len(columns), np.int8), columns, ends), shape=(len(names), len(names)))
    return [names[i] for i in reverse_cuthill_mckee(matrix, symmetric_mode=True)]


def nested_dissection(neighbours: Neighbours, draw: random.Random) -> list[int]:
    """Return an order that eliminates a small separator last, and so on in the pieces that it leaves.

    A separator is a layer of a breadth-first search from a variable far away from a random one.
    """
    order: list[int] = []  # backwards
    pieces = [set(neighbours)]
    while pieces:
        piece = pieces.pop()
        if len(piece) <= SMALL_PIECE:
            order += sorted(piece)
            continue
        far = _layers(draw.choice(sorted(piece)), piece, neighbours)[-1]
        layers = _layers(draw.choice(sorted(far)), piece, neighbours)
        reached = set().union(*layers)
        if len(reached) < len(piece):
            pieces += [piece - reached, reached]
            continue
        counts = np.cumsum([len(layer) for layer in layers])
        middle = [i for i, c in enumerate(counts) if len(piece) / 4 <= c <= 3 * len(piece) / 4] or [len(layers) // 2]
        cut = min(middle, key=lambda i: len(layers[i]))
        order += sorted(layers[cut], key=lambda v: len(neighbours[v] & piece))
        pieces += [part for part in (set().union(*layers[:cut]), set().union(*layers[cut + 1 :])) if part]
    return order[::-1]


def _layers(start: int, piece: set[int], neighbours: Neighbours) -> list[set[int]]:
    """Return the layers of a breadth-first search within a piece."""
    layers, seen = [{start}], {start}
    while near := set().union(*(neighbours[v] for v in layers[-1])) & piece - seen:
        layers.append(near)
        seen |= near
    return layers


def _random_ties(neighbours: Neighbours, sizes: Sequence[float], tries: int, ends: float) -> Iterator[list[int]]:
    """Yield the best of some compiled orders."""
    from mrfquant.kernels.elimination import eliminate
    from mrfquant.kernels.layout import COMPILED

    if not COMPILED:
        return
    names = list(neighbours)
    number = {v: i for i, v in enumerate(names)}
    near = np.zeros((len(names), -(-len(names) // 64)), np.uint64)
    for v, around in neighbours.items():
        for a in around:
            near[number[v], number[a] >> 6] |= np.uint64(1) << np.uint64(number[a] & 63)
    own = np.array([sizes[v] for v in names])
    state, best, chosen = np.array([1], np.uint64), (np.inf, np.inf), np.arange(len(names))
    for i in range(max(2, tries)):
        order = np.empty(len(names), np.int64)
        found = eliminate(near.copy(), own, i % 4 != 1, HOPELESS_WIDTH, state, order)
        if found < best:
            best, chosen = found, order
        if time.perf_counter() > ends:
            break
    if best[0] < np.inf:
        yield [names[i] for i in chosen]


def min_fill(
    neighbours: dict[int, set[int]], sizes: Sequence[float], limit: float, last: Container[int] = ()
) -> tuple[list[int], float]:
    """Eliminate variables by fewest missing edges; return the order and its largest size.

    The next variable is one whose neighbours lack the fewest edges among each other, the smaller clique first.

    Costs are updated incrementally, so it takes seconds for 100,000 variables of few neighbours. It modifies
    `neighbours`, and stops at the first clique above the limit: the order is incomplete then. Variables of `last` come
    after all others.
    """
    order: list[int] = []
    largest = 0.0

    def cost(v: int) -> tuple[bool, int, float, int]:
        around = neighbours[v]
        joined = sum(len(around & neighbours[a]) for a in around)  # runs over the smaller of the two
        missing = (len(around) * (len(around) - 1) - joined) // 2
        return v in last, missing, sizes[v] + sum(sizes[a] for a in around), v

    current = {v: cost(v) for v in neighbours}
    heap = list(current.values())
    heapq.heapify(heap)
    while heap:
        entry = heapq.heappop(heap)
        v = entry[3]
        if current.get(v) != entry:
            continue  # gone, or out of date
        del current[v]
        largest = max(largest, entry[2])
        order.append(v)
        if largest > limit:
            break
        for changed in _eliminate(v, neighbours):
            current[changed] = cost(changed)
            heapq.heappush(heap, current[changed])
    return order, largest


def _eliminate(v: int, neighbours: Neighbours) -> set[int]:
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
