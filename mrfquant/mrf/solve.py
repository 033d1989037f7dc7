"""From a field with evidence to an answer about every variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.solver import Result, Row, Solver
from mrfquant.settings import Count, NonNegative, Positive, configurable


@configurable(supplied=["graph", "evidence", "seed", "on_row"])
def solve(
    graph: FactorGraph,
    solver: Callable[..., Solver],
    evidence: Mapping[int, int] | None = None,
    iterations: Count = 1000,
    tolerance: NonNegative = 1e-6,
    seconds: Positive = math.inf,
    restarts: Count = 1,
    seed: int = 0,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Run a solver on the variables that are neither observed nor without a choice, from one or several starts.

    Args:
        solver: builds the solver from graph and seed. evidence: labels of observed variables.
        iterations, tolerance, seconds: when a run ends. restarts: runs, with seeds `seed`, `seed` + 1, ...

    Returns:
        The answer for the whole graph. Of several runs it is the one with the best lower bound on log Z if the solver
        gives one; the labelling is the best of all runs,
        the seconds are those of all.
    """
    observed = dict(evidence or {})
    single = (graph.cardinalities == 1).nonzero()[:, 0].tolist()
    reduced, kept = graph.condition({**dict.fromkeys(single, 0), **observed})
    _refuse_impossible(reduced, kept)
    results = [solver(reduced, seed=seed + i).run(iterations, tolerance, seconds, on_row) for i in range(restarts)]
    bounded = [r for r in results if r.direction == "lower bound"]
    chosen = max(bounded, key=lambda r: r.log_z) if bounded else results[0]
    best = min(results, key=lambda r: r.energy)
    labels = torch.zeros_like(graph.cardinalities)
    for v, label in observed.items():
        labels[v] = label
    marginals = graph.one_hot(labels)
    labels[kept] = best.labels
    for c in reduced.by_cardinality:
        marginals[graph.index(kept[c.variables])] = c.planes(chosen.marginals)
    seconds = sum(result.seconds for result in results)
    return replace(chosen, labels=labels, energy=best.energy, marginals=marginals, seconds=seconds)


def _refuse_impossible(graph: FactorGraph, names: Tensor) -> None:
    """Raise if a variable has no label left; other contradictions are for the exact solvers to find."""
    unary = graph.unary()
    for c in graph.by_cardinality:
        without = torch.isneginf(c.planes(unary)).all(0)
        if without.any():
            name = int(names[c.variables[without][0]])
            raise Contradiction(f"the factors of variable {name} alone contradict each other: no labelling is possible")
