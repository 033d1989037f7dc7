"""Solvers on explicit fields: against the memory traffic that no method avoids, and against other libraries."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mrfquant.benchmarks.timing import Options, Row, in_turns, peer, ratios
from mrfquant.inference import MeanField
from mrfquant.mrf import BeliefPropagation, FactorGraph, Relaxation, SequentialMeanField

VARIABLES, EDGES = 250_000, 1_000_000  # of the random graph
SIDE, LABELS, ITERATIONS = 100, 4, 100  # of the grid


def measure_fields(options: Options) -> Iterator[tuple[str, Row]]:
    """Run both measurements below."""
    yield "a million edges", measure_mean_field(options)
    yield "100 x 100 grid", measure_belief_propagation(options)


@torch.no_grad()
def measure_mean_field(options: Options) -> Row:
    """Time an iteration of mean-field on a million edges against one gather and index_add over all its messages."""
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
    return ratios(in_turns(sides, options))


@torch.no_grad()
def measure_belief_propagation(options: Options) -> Row:
    """Time 100 parallel iterations of belief propagation on a grid against PGMax's."""
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
    if options.peers and peer("pgmax", "pgmax 'jax==0.4.30' 'jaxlib==0.4.30'"):
        sides["PGMax"] = _pgmax(unary, edges, tables)
    return ratios(in_turns(sides, options))


def _pgmax(unary: Any, edges: Any, tables: Any) -> Callable[[], Any]:
    """Return the same inference by PGMax, compiled."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    variables = vgroup.NDVarArray(num_states=LABELS, shape=(SIDE, SIDE))
    graph = fgraph.FactorGraph(variable_groups=variables)
    ends = [[variables[divmod(v, SIDE)] for v in edge] for edge in edges.tolist()]
    graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=ends, log_potential_matrix=tables.numpy()))
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    start = inferer.init(evidence_updates={variables: unary.numpy()})
    run = jax.jit(lambda arrays: inferer.run(arrays, num_iters=ITERATIONS, damping=0.0, temperature=1.0))
    return lambda: jax.block_until_ready(run(start))
