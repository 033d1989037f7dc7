"""From a field with evidence to an answer about every variable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from mrfquant.config.settings import Count, NonNegative, Positive, Seed, configurable, makes
from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.solver import Result, Row, Solver

SolverRecipe = Annotated[Callable[..., Solver], makes(Solver, "a solver of fields, as @BeliefPropagation")]


@configurable(supplied=["graph", "evidence", "seed", "on_row"])
def solve(
    graph: FactorGraph,
    solver: SolverRecipe,
    evidence: Mapping[int, int] | None = None,
    iterations: Count = 1000,
    tolerance: NonNegative = 1e-6,
    seconds: Positive | None = None,
    restarts: Count = 1,
    seed: Seed = 0,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Run a solver on the variables that are neither observed nor without a choice, from one or several starts.

    Args:
        graph: the field.
        solver: builds the solver from graph and seed.
        evidence: labels of observed variables.
        iterations: of a run, at most.
        tolerance: a run has converged when its residual is at most this.
        seconds: of a run, at most.
        restarts: runs, with seeds `seed`, `seed` + 1, ...
        seed: of the first run.
        on_row: called with each row of a run's trace.

    Returns:
        The answer for the whole graph. Of several runs it is the one with the best lower bound on log Z if the solver
        gives one, else the one with the best labelling; the labelling is the best of all runs,
        the seconds are those of all.
    """
    observed = dict(evidence or {})
    single = (graph.cardinalities == 1).nonzero()[:, 0].tolist()
    reduced, kept = graph.condition({**dict.fromkeys(single, 0), **observed})
    _check_possible(reduced, kept)
    started = time.perf_counter()
    if len(reduced):
        limit = math.inf if seconds is None else seconds
        results = [solver(reduced, seed=seed + i).run(iterations, tolerance, limit, on_row) for i in range(restarts)]
    else:
        results = [_nothing_left(reduced)]
    best = min(results, key=lambda r: r.energy)
    bounded = [(r, r.log_z) for r in results if r.direction == "lower bound" and r.log_z is not None]
    chosen = max(bounded, key=lambda b: b[1])[0] if bounded else best
    labels = torch.zeros_like(graph.cardinalities)
    for v, label in observed.items():
        labels[v] = label
    marginals = graph.one_hot(labels)
    labels[kept] = best.labels
    for c in reduced.by_cardinality:
        marginals[graph.index(kept[c.variables])] = c.planes(chosen.marginals)
    elapsed = time.perf_counter() - started  # solvers also work while they are built
    return replace(chosen, labels=labels, energy=best.energy, marginals=marginals, seconds=elapsed)


def _nothing_left(graph: FactorGraph) -> Result:
    """The answer where no variable has a choice."""
    nothing = graph.cardinalities.clone()
    return Result(nothing, -graph.constant, graph.uniform(), graph.constant, "exact", "converged", 0, 0.0)


def _check_possible(graph: FactorGraph, names: Tensor) -> None:
    """Raise if a variable has no label left; other contradictions are for the exact solvers to find."""
    unary = graph.unary()
    for c in graph.by_cardinality:
        without = torch.isneginf(c.planes(unary)).all(0)
        if without.any():
            name = int(names[c.variables[without][0]])
            raise Contradiction(f"the factors of variable {name} alone contradict each other: no labelling is possible")
