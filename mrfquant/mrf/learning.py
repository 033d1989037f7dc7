"""log Z as a function of the log-potentials, with its gradient; and many observations at once.

    d log Z / d θ_a(x_a) = p(x_a),

the marginals of the factors. At a fixed point the same holds for the approximations of log Z by belief propagation and
mean-field, with their marginals of the factors: the messages are stationary.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.mrf.exact import JunctionTree
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.solving import FieldSolverRecipe


def log_partition(
    graph: FactorGraph,
    solver: FieldSolverRecipe = JunctionTree,
    iterations: int = 1000,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> Tensor:
    """Return log Z of a graph, differentiable once where its tables and constant factors are.

    It warns when the solver stops before it has converged: the gradient is right at fixed points only.

    Args:
        graph: its groups' tables may need gradients.
        solver: computes log Z, or an approximation of it, and the marginals of the factors.
        iterations: the most iterations of the solver.
        tolerance: the residual at which it has converged.
        seed: seed of the solver.
    """
    tables = (group.tables for group in graph.groups)
    return _LogPartition.apply(graph, solver, iterations, tolerance, seed, *tables) + graph.learned_constant


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graph: FactorGraph, solver: Any, iterations: int, tolerance: float, seed: int, *tables: Tensor
    ) -> Tensor:
        groups = [(group.scopes, table.detach()) for group, table in zip(graph.groups, tables, strict=True)]
        fixed = FactorGraph(graph.cardinalities, (), groups, graph.constant, graph.dtype, graph.device)
        built = solver(fixed, seed=seed)
        result = built.run(iterations, tolerance)
        if result.log_z is None:
            raise BadInput(f"{type(built).__name__} gives no log Z: use JunctionTree, BeliefPropagation or mean-field")
        if result.reason != "converged":
            told = f"{type(built).__name__} stopped after {result.iterations} iterations, before it converged"
            warnings.warn(f"{told}: log Z and its gradient are rough; give more iterations or damping", stacklevel=3)
        ctx.save_for_backward(*built.factor_marginals())
        return graph.uniform().new_tensor(result.log_z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise BadInput("log Z has first derivatives only: call backward without create_graph")
        return (None, None, None, None, None, *(gradient * p for p in ctx.saved_tensors))


def pseudo_likelihood(graph: FactorGraph, data: Tensor) -> Tensor:
    """Return the mean over labellings (N, n) of sum_i log p(x_i | all others), differentiable in the tables.

    Its maximum is where the truth is as N grows, as that of the likelihood, and it needs no log Z (Besag, 1975).
    """
    many = with_evidence(graph, [{}] * len(data))
    u = many.one_hot(data.reshape(-1))
    fields = many.fields(u)
    chosen = [(c.planes(fields).log_softmax(0) * c.planes(u)).sum() for c in many.by_cardinality]
    return torch.stack(chosen).sum() / len(data)


def with_evidence(graph: FactorGraph, evidence: Sequence[Mapping[int, int]]) -> FactorGraph:
    """Return a graph of copies of a graph, one for each set of observed labels, to solve all at once.

    Variable v of copy k has the number k n + v. Every copy keeps its observed variables, with all other labels
    forbidden; `solve` removes them.

    Args:
        graph: a graph of n variables.
        evidence: labels of observed variables, for each copy.
    """
    n, copies = len(graph), len(evidence)
    offsets = (n * torch.arange(copies, device=graph.device)).view(-1, 1, 1)
    groups = []
    for group in graph.groups:
        tables = group.tables[..., None, :].expand(*group.shape, copies, len(group)).reshape(*group.shape, -1)
        groups.append(((group.scopes + offsets).view(-1, group.scopes.shape[1]), tables))
    cards = graph.cardinalities.tolist()
    observed: list[tuple[Sequence[int], Tensor]] = []
    for k, labels in enumerate(evidence):
        for v, label in labels.items():
            if not 0 <= v < n or not 0 <= label < cards[v]:
                raise BadInput(f"evidence {k} gives variable {v} the label {label}: there is no such variable or label")
            table = torch.full((cards[v],), -torch.inf, dtype=torch.float64)
            table[label] = 0
            observed.append(([k * n + v], table))
    return FactorGraph(
        graph.cardinalities.repeat(copies), observed, groups, copies * graph.constant, graph.dtype, graph.device
    )
