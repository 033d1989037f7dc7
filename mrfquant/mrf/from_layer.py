"""Rows of a layer's rounding problem as fields, and as quadratic binary problems."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mrfquant.mrf.factor_graph import FactorGraph


def quadratic_field(moments: Tensor, weights: Tensor, choices: Tensor) -> FactorGraph:
    """Return the field whose energy is 1/2 (w - w°)ᵀ A (w - w°), where each weight is one of its choices.

    Args:
        moments: (n, n) symmetric, A.
        weights: (n,) w°.
        choices: (d, n) of each weight.
    """
    a, errors = moments.double(), (choices - weights).double()
    n, d = len(weights), len(choices)
    first, second = torch.triu_indices(n, n, 1)
    pairs = -a[first, second] * errors[:, None, first] * errors[None, :, second]
    unary = -0.5 * a.diagonal() * errors.square()
    scopes = torch.stack([first, second], 1)
    return FactorGraph([d] * n, groups=[(torch.arange(n)[:, None], unary), (scopes, pairs)])


def qubo_lines(graph: FactorGraph) -> Iterator[str]:
    """Yield the lines of a quadratic binary problem: n and the constant, then i, j and the coefficient of x_i x_j.

    The energy of labels x of 0 and 1 is the constant plus the sum of all terms; those with i = j are linear.
    """
    n = len(graph)
    terms = torch.zeros(n, n, dtype=torch.float64)
    constant = -graph.constant
    for group in graph.groups:
        cost = -group.tables.double()
        if len(group.index) == 1:
            constant += cost[0].sum().item()
            terms.diagonal().index_add_(0, group.scopes[:, 0], cost[1] - cost[0])
            continue
        constant += cost[0, 0].sum().item()
        terms.diagonal().index_add_(0, group.scopes[:, 0], cost[1, 0] - cost[0, 0])
        terms.diagonal().index_add_(0, group.scopes[:, 1], cost[0, 1] - cost[0, 0])
        both = cost[1, 1] - cost[1, 0] - cost[0, 1] + cost[0, 0]
        terms.index_put_(tuple(group.scopes.t()), both, accumulate=True)
    yield f"{n} {constant!r}"
    for i, j in terms.nonzero().tolist():
        yield f"{i} {j} {terms[i, j].item()!r}"
