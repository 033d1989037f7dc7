"""Random fields of many kinds, as files for uai_table.py.

python docs/random_fields.py FOLDER writes them.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import networkx as nx
import torch
from torch import Tensor

from mrfquant.mrf import FactorGraph, ising, potts
from mrfquant.mrf.uai import write_model

Random = torch.Generator
NEVER = -math.inf


def spins(side: int, strength: float, random: Random) -> FactorGraph:
    """A grid of spins with couplings of both signs."""
    grid = nx.grid_2d_graph(side, side)
    couplings = strength * _normal(random, grid.number_of_edges())
    return ising(grid, _normal(random, side * side), couplings)


def torus(side: int, random: Random) -> FactorGraph:
    """A spin glass on a three-dimensional torus, with couplings of 1 and -1."""
    grid = nx.grid_graph((side, side, side), periodic=True)
    signs = torch.randint(0, 2, (grid.number_of_edges(),), generator=random)
    return ising(grid, 0.0, 2.0 * signs - 1)


def clauses(nodes: int, count: int, random: Random) -> FactorGraph:
    """Clauses of three literals, all hard, that a hidden labelling satisfies."""
    hidden, factors = torch.randint(0, 2, (nodes,), generator=random).tolist(), []
    while len(factors) < count:
        scope, signs = _choose(nodes, 3, random), torch.randint(0, 2, (3,), generator=random).tolist()
        if [hidden[v] for v in scope] != signs:
            table = torch.zeros(2, 2, 2)
            table[tuple(signs)] = NEVER
            factors.append((scope, table))
    return FactorGraph([2] * nodes, factors)


def regular(nodes: int, degree: int, labels: int, random: Random) -> FactorGraph:
    """A random regular graph with random tables."""
    return _tables(nodes, nx.random_regular_graph(degree, nodes, seed=1).edges(), labels, random)


def full(nodes: int, labels: int, random: Random) -> FactorGraph:
    """All pairs, with random tables."""
    return _tables(nodes, itertools.combinations(range(nodes), 2), labels, random)


def glass(side: int, labels: int, random: Random) -> FactorGraph:
    """A grid of labels that prefer or avoid equal neighbours."""
    grid = nx.grid_2d_graph(side, side)
    return potts(grid, _normal(random, side * side, labels), 2 * _normal(random, grid.number_of_edges()))


def triples(nodes: int, count: int, labels: int, random: Random) -> FactorGraph:
    """Factors of three variables."""
    factors: list = [([v], _normal(random, labels)) for v in range(nodes)]
    for _ in range(count):
        factors.append((_choose(nodes, 3, random), 2 * _normal(random, labels, labels, labels)))
    return FactorGraph([labels] * nodes, factors)


def diagnosis(causes: int, findings: int, random: Random) -> FactorGraph:
    """Rare causes and observed findings, each the deterministic OR of leaky links, in chains of three variables."""
    factors: list = [([v], torch.tensor([0.95, 0.05]).double().log()) for v in range(causes)]
    cards = [2] * causes
    for _ in range(findings):
        seen = torch.rand(1, generator=random).item() < 0.4
        before = None
        for cause in _choose(causes, 4, random):
            cards.append(2)
            after, off = len(cards) - 1, 0.1 + 0.8 * torch.rand(1, generator=random).item()
            stays = torch.tensor([[[1.0, 0.0], [off, 1 - off]], [[0.0, 1.0], [0.0, 1.0]]]).double().log()
            factors.append(([cause, after], stays[0]) if before is None else ([before, cause, after], stays))
            before = after
        factors.append(([before], torch.tensor([NEVER, 0.0] if seen else [0.0, NEVER])))
    return FactorGraph(cards, factors)


def parity(nodes: int, checks: int, random: Random) -> FactorGraph:
    """Noisy bits with parity checks of four, as in decoding; the zeros are allowed."""
    even = torch.full((2, 2, 2, 2), NEVER)
    for bits in itertools.product(range(2), repeat=4):
        if sum(bits) % 2 == 0:
            even[bits] = 0
    factors: list = [([v], 1.5 * _normal(random, 2)) for v in range(nodes)]
    factors += [(_choose(nodes, 4, random), even) for _ in range(checks)]
    return FactorGraph([2] * nodes, factors)


def colouring(nodes: int, colours: int, edges: int, random: Random) -> FactorGraph:
    """Neighbours must differ, and each node likes some colours more."""
    graph = nx.gnm_random_graph(nodes, edges, seed=2)
    differ = torch.zeros(colours, colours).fill_diagonal_(NEVER)
    factors: list = [([v], 2 * _normal(random, colours)) for v in range(nodes)]
    return FactorGraph([colours] * nodes, factors + [(edge, differ) for edge in graph.edges()])


def pedigree(founders: int, children: int, random: Random) -> FactorGraph:
    """Genotypes of a family at two linked places: what a child has, it has from its parents."""
    labels = list(itertools.product(range(2), repeat=2))  # a label says which of two variants each chromosome carries
    inherit = torch.full((4, 4, 4), NEVER).double()
    for (m, mother), (f, father), (c, child) in itertools.product(enumerate(labels), repeat=3):
        p = mother.count(child[0]) / 2 * father.count(child[1]) / 2
        inherit[m, f, c] = math.log(p) if p else NEVER
    factors: list = [([v], _normal(random, 4)) for v in range(founders)]
    for person in range(founders, founders + children):
        factors.append(([*_choose(person, 2, random), person], inherit))
        if torch.rand(1, generator=random).item() < 0.5:
            factors.append(([person], 2 * _normal(random, 4)))
    return FactorGraph([4] * (founders + children), factors)


def side_chains(residues: int, rotamers: int, random: Random) -> FactorGraph:
    """Many labels of different numbers, neighbours in space, and some pairs that clash."""
    place = torch.rand(residues, 3, generator=random)
    cards = [int(c) for c in torch.randint(2, rotamers, (residues,), generator=random)]
    factors: list = [([v], 3 * _normal(random, c)) for v, c in enumerate(cards)]
    near = torch.cdist(place, place).topk(7, largest=False).indices
    for a, b in sorted({(min(v, int(w)), max(v, int(w))) for v in range(residues) for w in near[v] if v != int(w)}):
        clash = torch.rand(cards[a], cards[b], generator=random) < 0.15
        factors.append(([a, b], _normal(random, cards[a], cards[b]) - 50 * clash))
    return FactorGraph(cards, factors)


def disparity(rows: int, columns: int, labels: int, random: Random) -> FactorGraph:
    """A scene of planes with truncated linear differences between neighbours."""
    depth = torch.arange(columns).expand(rows, -1) * labels / columns
    unary = -((depth[..., None] - torch.arange(labels)).abs() + 3 * torch.rand(rows, columns, labels, generator=random))
    steps = torch.arange(labels).double()
    table = -(steps[:, None] - steps).abs().clamp(max=3)
    edges = torch.tensor(
        [(a * columns + b, c * columns + d) for (a, b), (c, d) in nx.grid_2d_graph(rows, columns).edges()]
    )
    groups = [
        (torch.arange(rows * columns)[:, None], unary.view(-1, labels).t().double()),
        (edges, table[..., None].expand(labels, labels, len(edges))),
    ]
    return FactorGraph([labels] * (rows * columns), groups=groups)


FIELDS: dict[str, Callable[[Random], FactorGraph]] = {
    "spins_20": lambda r: spins(20, 2.0, r),
    "spins_30": lambda r: spins(30, 1.0, r),
    "spins_50": lambda r: spins(50, 2.0, r),
    "glass_20_4": lambda r: glass(20, 4, r),
    "glass_30_8": lambda r: glass(30, 8, r),
    "regular_100_2": lambda r: regular(100, 4, 2, r),
    "regular_300_2": lambda r: regular(300, 3, 2, r),
    "regular_100_5": lambda r: regular(100, 4, 5, r),
    "full_40_2": lambda r: full(40, 2, r),
    "full_25_8": lambda r: full(25, 8, r),
    "triples_60_2": lambda r: triples(60, 120, 2, r),
    "triples_200_2": lambda r: triples(200, 300, 2, r),
    "triples_60_4": lambda r: triples(60, 100, 4, r),
    "diagnosis_50": lambda r: diagnosis(50, 40, r),
    "diagnosis_150": lambda r: diagnosis(150, 120, r),
    "parity_60": lambda r: parity(60, 30, r),
    "parity_150": lambda r: parity(150, 60, r),
    "colouring_60": lambda r: colouring(60, 4, 150, r),
    "colouring_200": lambda r: colouring(200, 5, 600, r),
    "pedigree_80": lambda r: pedigree(15, 65, r),
    "pedigree_300": lambda r: pedigree(40, 260, r),
    "side_chains_40": lambda r: side_chains(40, 30, r),
    "side_chains_120": lambda r: side_chains(120, 60, r),
    "disparity_40": lambda r: disparity(30, 40, 16, r),
    "disparity_120": lambda r: disparity(80, 120, 12, r),
    "torus_8": lambda r: torus(8, r),
    "torus_15": lambda r: torus(15, r),
    "full_60_20": lambda r: full(60, 20, r),
    "clauses_2700": lambda r: clauses(2700, 10_800, r),
}


def write_fields(folder: Path) -> None:
    """Write all of them as NAME.uai; the same numbers at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, make) in enumerate(FIELDS.items()):
        write_model(folder / f"{name}.uai", make(torch.Generator().manual_seed(number)))


def _normal(random: Random, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def _choose(below: int, count: int, random: Random) -> list[int]:
    return torch.randperm(below, generator=random)[:count].tolist()


def _tables(nodes: int, edges: Iterable[tuple[int, int]], labels: int, random: Random) -> FactorGraph:
    factors: list = [([v], _normal(random, labels)) for v in range(nodes)]
    factors += [(edge, _normal(random, labels, labels)) for edge in sorted(edges)]
    return FactorGraph([labels] * nodes, factors)


if __name__ == "__main__":
    write_fields(Path(sys.argv[1]))
