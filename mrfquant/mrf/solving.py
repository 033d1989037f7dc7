"""Solve a field with evidence: reduce it, run a solver on the rest, and return a result for all variables."""

import importlib
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from mrfquant.config.settings import Count, NonNegative, Positive, Seed, configurable, makes
from mrfquant.mrf.arrays import possible_labels
from mrfquant.mrf.contradiction import Contradiction
from mrfquant.mrf.factor_graph import Evidence, FactorGraph
from mrfquant.mrf.groups import pick
from mrfquant.mrf.result import Result, Row
from mrfquant.mrf.solver import FieldSolver

SOLVERS = ["annealing", "coordinate", "dual", "exact", "graph_cut", "iterated_descent", "local_search"]
SOLVERS += ["message_passing", "portfolio", "relaxation", "toulbar2"]
for module in SOLVERS:
    importlib.import_module(f"mrfquant.mrf.{module}")  # gin files name what is in them

FieldSolverRecipe = Annotated[
    Callable[..., FieldSolver], makes(FieldSolver, "a solver of fields, as @BeliefPropagation")
]

COMPILE_ITERATIONS = 8  # after which every loop of a solver has been used


@configurable(supplied=["graph", "evidence", "seed", "on_row", "trace"])
def solve(
    graph: FactorGraph,
    solver: FieldSolverRecipe,
    evidence: Evidence | None = None,
    iterations: Count = 1000,
    tolerance: NonNegative = 1e-6,
    seconds: Positive | None = None,
    restarts: Count = 1,
    seed: Seed = 0,
    on_row: Callable[[Row], None] = lambda row: None,
    trace: bool = False,
) -> Result:
    """Run a solver on the variables that are not observed, from one or several starts.

    Labels that hard constraints rule out are removed before.

    Args:
        graph: the field.
        solver: builds the solver from graph and seed.
        evidence: for each observed variable its label, or, as soft evidence, the likelihood of each label.
        iterations: the most iterations of a run.
        tolerance: a run has converged when its residual is at most this.
        seconds: time limit of a run; solvers check the clock inside their iterations, too.
        restarts: number of runs, with seeds `seed`, `seed` + 1, ...
        seed: seed of the first run.
        on_row: called with each row of a run's trace.
        trace: keep a row of every iteration, which may cost more than the iteration itself.

    Returns:
        The result for the whole graph: of the run with the best lower bound on log Z if the solver gives one, else of
        the run with the best labelling; with the best labelling and bound of all runs, and the time of all.
    """
    if seconds is not None:
        _compile(solver)
    started = time.perf_counter()
    problem = _Reduced(*graph.observe(evidence or {}))
    reduced = problem.graph
    around = 1.5 * (time.perf_counter() - started)  # the way there, and back from the results
    results = []
    for i in range(restarts if len(reduced) else 0):
        begun = time.perf_counter()
        built = solver(reduced, seed=seed + i)  # which may take a part of the time
        left = math.inf if seconds is None else max(0.0, begun + seconds - time.perf_counter() - around)
        results.append(built.run(iterations, tolerance, left, on_row, trace))
        if results[-1].optimal:
            break
    if not len(reduced):
        solver(FactorGraph([2]), seed=seed)  # so that bad settings are found here, too
        labels, u, log_z = reduced.cardinalities.clone(), reduced.uniform(), reduced.constant
        results = [Result(labels, -log_z, u, log_z, "exact", "converged", 0, 0.0, [], -log_z)]
    best = min(results, key=lambda r: r.energy)
    bounded = [(r, r.log_z) for r in results if r.direction == "lower bound" and r.log_z is not None]
    chosen = max(bounded, key=lambda b: b[1])[0] if bounded else best
    labels, marginals = problem.labels(best.labels), problem.marginals(chosen.marginals)
    bound, took = max(result.bound for result in results), time.perf_counter() - started
    return replace(chosen, labels=labels, energy=best.energy, marginals=marginals, seconds=took, bound=bound)


def _compile(solver: FieldSolverRecipe) -> None:
    """Run a solver on a small field, so that compiling its loops does not count for the time limit."""
    if solver(FactorGraph([2]), seed=0).compiled:
        random = torch.Generator().manual_seed(0)
        pairs = list(itertools.combinations(range(8), 2))  # so many that bounds prove nothing
        costs = torch.randn(len(pairs), 3, 3, dtype=torch.float64, generator=random)
        solver(FactorGraph([3] * 8, list(zip(pairs, costs, strict=True))), seed=0).run(COMPILE_ITERATIONS, -1.0)


class _Reduced:
    """A graph without observed variables and impossible labels, in `graph`, and the way back to the whole graph."""

    def __init__(self, graph: FactorGraph, evidence: dict[int, int]) -> None:
        self.whole = graph
        single = (graph.cardinalities == 1).nonzero()[:, 0].tolist()
        self.fixed = {**dict.fromkeys(single, 0), **evidence}
        rest, kept = graph.condition(self.fixed)
        _check_possible(rest, kept)
        possible = possible_labels(rest)
        if forced := _forced(rest, possible):
            names = kept.tolist()
            self.fixed |= {names[v]: label for v, label in forced.items()}
            rest, kept = graph.condition(self.fixed)
            possible = possible_labels(rest)
        self._same = rest is graph and bool(possible.all())
        if self._same:
            self.graph = graph
            return
        self.graph, places = restrict(rest, possible)
        self._open = torch.empty(rest.size, dtype=torch.int64, device=graph.device)  # where in the whole graph
        for c in rest.by_cardinality:
            self._open[rest.index(c.variables)] = graph.index(kept[c.variables])
        self._places = self._open[places]

    def labels(self, labels: Tensor) -> Tensor:
        """Return the labels of all variables from those of `graph`."""
        if self._same:
            return labels
        return self.whole.argmax(self.marginals(self.graph.one_hot(labels)))

    def marginals(self, marginals: Tensor) -> Tensor:
        """Return the marginals of all variables from those of `graph`."""
        if self._same:
            return marginals
        labels = torch.zeros_like(self.whole.cardinalities)
        for v, label in self.fixed.items():
            labels[v] = label
        flat = self.whole.one_hot(labels)
        flat[self._open] = 0
        flat[self._places] = marginals
        return flat


def _forced(graph: FactorGraph, possible: Tensor) -> dict[int, int]:
    """Return the variables with one possible label."""
    forced: dict[int, int] = {}
    for c in graph.by_cardinality:
        planes = c.planes(possible)
        alone = planes.sum(0) == 1
        labels = planes[:, alone].int().argmax(0).tolist()
        forced |= dict(zip(c.variables[alone].tolist(), labels, strict=True))
    return forced


def _check_possible(graph: FactorGraph, names: Tensor) -> None:
    """Raise if the unary factors leave a variable no label; other contradictions are found later."""
    unary = graph.unary()
    for c in graph.by_cardinality:
        without = torch.isneginf(c.planes(unary)).all(0)
        if without.any():
            name = int(names[c.variables[without][0]])
            raise Contradiction(f"the factors of variable {name} alone contradict each other: no labelling is possible")


def restrict(graph: FactorGraph, possible: Tensor) -> tuple[FactorGraph, Tensor]:
    """Return the graph of the possible labels, and the places of its flat vectors in those of the old graph."""
    if possible.all():
        return graph, torch.arange(graph.size, device=graph.device)
    rows = [torch.tensor(row).nonzero()[:, 0] for row in graph.per_variable(possible.double())]
    cut = graph.cardinalities.tolist()
    whole = torch.tensor([len(row) == c for row, c in zip(rows, cut, strict=True)], device=graph.device)
    groups, factors = [], []
    for group in graph.groups:
        same = whole[group.scopes].all(1)
        chosen = same.nonzero()[:, 0]
        if len(chosen):
            groups.append((group.scopes[chosen], pick(group.tables, chosen)))
        for f in (~same).nonzero()[:, 0].tolist():
            scope, table = group.scopes[f].tolist(), group.tables[..., f]
            for axis, v in enumerate(scope):
                table = table.index_select(axis, rows[v].to(table.device))
            factors.append((scope, table))
    small = FactorGraph([len(row) for row in rows], factors, groups, graph.constant, graph.dtype, graph.device)
    places = torch.empty(small.size, dtype=torch.int64, device=graph.device)
    for c in small.by_cardinality:
        for v in c.variables.tolist():
            one = torch.tensor([v], device=graph.device)
            places[small.index(one)[:, 0]] = graph.index(one)[:, 0][rows[v].to(graph.device)]
    return small, places
