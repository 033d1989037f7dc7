"""Exact results of small and thin fields by numpy alone: done before torch is imported."""

import math
import time
from collections.abc import Mapping

import numpy as np

from mrfquant.mrf.clique_tree import CliqueTree
from mrfquant.mrf.contradiction import contradiction
from mrfquant.mrf.decomposition import min_fill
from mrfquant.mrf.result import Result
from mrfquant.mrf.uai import Model

MAX_VARIABLES, MAX_WIDTH = 1000, 18.0  # log2 of the largest table
MAX_ENTRIES = 10**7  # of all tables


def solve_thin(model: Model, evidence: Mapping[int, int]) -> Result | None:
    """Return the exact result of a small, thin field, with marginals as a row for each variable; None for others."""
    started = time.perf_counter()
    cards = model.cardinalities.tolist()
    if len(cards) > MAX_VARIABLES or any(v >= len(cards) or x >= cards[v] for v, x in evidence.items()):
        return None
    factors = []
    for scopes, tables in model.groups:
        for f, scope in enumerate(scopes.tolist()):
            seen = tuple(evidence.get(v, slice(None)) for v in scope)
            factors.append(([v for v in scope if v not in evidence], tables[..., f][seen]))
    free = [1 if v in evidence else c for v, c in enumerate(cards)]
    neighbours: dict[int, set[int]] = {v: set() for v, c in enumerate(free) if c > 1}
    for scope, _ in factors:
        for v in neighbours.keys() & scope:
            neighbours[v].update(w for w in scope if w != v and w in neighbours)
    sizes = [math.log2(c) for c in free]
    order, width = min_fill({v: set(near) for v, near in neighbours.items()}, sizes, MAX_WIDTH)
    if width > MAX_WIDTH:
        return None
    tree = CliqueTree(free, factors, model.constant, order, neighbours)
    if tree.entries > MAX_ENTRIES:
        return None
    labels, score = tree.best()
    rows, log_z = tree.marginals()
    if score == -math.inf:
        raise contradiction()
    for v, label in evidence.items():
        labels[v], rows[v] = label, [float(x == label) for x in range(cards[v])]
    rows = [row if len(row) == c else [1.0] for row, c in zip(rows, cards, strict=True)]
    took = time.perf_counter() - started
    return Result(np.array(labels), -score, rows, log_z, "exact", "converged", 1, took, [], -score)
