"""Solvers on explicit fields: against the memory traffic that no method avoids, and against other libraries."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from mrfquant.benchmarks.timing import in_turns, ratio
from mrfquant.errors import BadInput
from mrfquant.inference import MeanField
from mrfquant.mrf import BeliefPropagation, FactorGraph, Relaxation, SequentialMeanField

NEEDED = "--peers needs PGMax and pyGMs: pip install pgmax 'jax==0.4.30' 'jaxlib==0.4.30' pyGMs"
VARIABLES, EDGES = 250_000, 1_000_000  # of the random graph
SIDE, LABELS, ITERATIONS = 100, 4, 100  # of the grid


@torch.no_grad()
def measure_mean_field(rounds: int) -> dict[str, Any]:
    """An iteration of mean-field on a million edges, against one gather and one index_add over all its messages."""
    random = torch.Generator().manual_seed(0)
    first = torch.randint(VARIABLES, (EDGES,), generator=random)
    second = (first + torch.randint(1, VARIABLES, (EDGES,), generator=random)) % VARIABLES
    unary = torch.randn(2, VARIABLES, generator=random)
    groups = [
        (torch.arange(VARIABLES)[:, None], unary),
        (torch.stack([first, second], 1), torch.randn(2, 2, EDGES, generator=random)),
    ]
    graph = FactorGraph([2] * VARIABLES, groups=groups, dtype=torch.float32)
    index = torch.cat([i.reshape(-1) for i in graph.couplings[0].index])
    u = graph.uniform()

    def traffic() -> None:
        torch.zeros_like(u).index_add_(0, index, u.index_select(0, index))

    sides: dict[str, Callable[[], Any]] = {
        "gather + index_add": traffic,
        "mean-field": Relaxation(graph, inference=functools.partial(MeanField, damping=0.5)).step,
        "sequential mean-field": SequentialMeanField(graph).step,
        "belief propagation": BeliefPropagation(graph).step,
    }
    return _ratios(in_turns(sides, 1, rounds))


@torch.no_grad()
def measure_belief_propagation(rounds: int, peers: bool) -> dict[str, Any]:
    """Belief propagation on a grid, 100 parallel iterations, against PGMax's and pyGMs'."""
    random = torch.Generator().manual_seed(0)
    unary = torch.randn(SIDE, SIDE, LABELS, generator=random)
    number = torch.arange(SIDE * SIDE).view(SIDE, SIDE)
    edges = torch.cat(
        [
            torch.stack([number[:, :-1], number[:, 1:]], -1).view(-1, 2),
            torch.stack([number[:-1], number[1:]], -1).view(-1, 2),
        ]
    )
    tables = torch.randn(len(edges), LABELS, LABELS, generator=random) / 2
    graph = FactorGraph(
        [LABELS] * SIDE**2,
        groups=[(number.view(-1, 1), unary.view(-1, LABELS).t()), (edges, tables.permute(1, 2, 0).contiguous())],
        dtype=torch.float32,
    )

    def ours() -> None:
        solver = BeliefPropagation(graph, noise=0.0)
        for _ in range(ITERATIONS):
            solver.step()

    sides: dict[str, Callable[[], Any]] = {"belief propagation": ours}
    if peers:
        sides |= {"PGMax": _pgmax(unary, edges, tables), "pyGMs": _pygms(unary, edges, tables)}
    times = in_turns(sides, 1, rounds)
    if peers:
        times["pyGMs"] = [ITERATIONS * t for t in times["pyGMs"]]  # it takes seconds for one
    return _ratios(times)


def _pgmax(unary: Any, edges: Any, tables: Any) -> Callable[[], Any]:
    """The same inference by PGMax, compiled."""
    try:
        import jax
        from pgmax import fgraph, fgroup, infer, vgroup
    except ImportError:
        raise BadInput(NEEDED) from None
    variables = vgroup.NDVarArray(num_states=LABELS, shape=(SIDE, SIDE))
    graph = fgraph.FactorGraph(variable_groups=variables)
    ends = [[variables[divmod(v, SIDE)] for v in edge] for edge in edges.tolist()]
    graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=ends, log_potential_matrix=tables.numpy()))
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    start = inferer.init(evidence_updates={variables: unary.numpy()})
    run = jax.jit(lambda arrays: inferer.run(arrays, num_iters=ITERATIONS, damping=0.0, temperature=1.0))
    return lambda: jax.block_until_ready(run(start))


def _pygms(unary: Any, edges: Any, tables: Any) -> Callable[[], Any]:
    """One iteration of the same inference by pyGMs, which has a Python object for each factor and message."""
    try:
        import pygms
        from pygms.messagepass import LBP
    except ImportError:
        raise BadInput(NEEDED) from None
    variables = [pygms.Var(v, LABELS) for v in range(SIDE**2)]
    factors = [
        pygms.Factor([v], table) for v, table in zip(variables, unary.view(-1, LABELS).exp().numpy(), strict=True)
    ]
    for (a, b), table in zip(edges.tolist(), tables.exp().numpy(), strict=True):
        factors.append(pygms.Factor([variables[a], variables[b]], table))
    model = pygms.GraphModel(factors)
    return lambda: LBP(model, maxIter=1)


def _ratios(times: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds of the first side, and the others as ratios to it."""
    reference, *others = times
    found: dict[str, Any] = {f"{reference}, ms": 1000 * statistics.median(times[reference])}
    return found | {name: ratio(times[name], times[reference]) for name in others}
