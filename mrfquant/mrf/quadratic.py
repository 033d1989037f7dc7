"""Quadratic fields, as those of layers' rows and all of two labels: found, and rounded by Babai's nearest plane.

Pairs of the form B_ij v_i(x) v_j(y), up to terms of single variables, and unary costs a_i v_i(x)² / 2 + b_i v_i(x) are

    E(x) = 1/2 (v(x) - w)ᵀ A (v(x) - w) + constant,      A = B + diag(a),   w = -A^-1 b.

With two labels v_i(x)² is a constant: there a is the least number, the same for all, that makes A positive definite.
"""

import torch
from torch import Tensor

from mrfquant.mrf.factor_graph import FactorGraph

MAX_VARIABLES = 1000  # of a field that is looked at: the work grows with the cube
MAX_ENTRIES = 10**7  # of its tables
TOLERANCE = 1e-6  # relative error of tables that count as quadratic
RIDGES = (1e-6, 1e-3, 1e-2, 0.1, 1.0)  # added to A, in units of its mean diagonal; the best labelling counts


def nearest_plane(graph: FactorGraph) -> Tensor | None:
    """Return the labels of Babai's nearest plane (n,), which gptq is, too; None where the field is not quadratic.

    One variable after the other takes the value nearest to the optimum of all that are left, as if those were free.
    """
    if (form := quadratic_form(graph)) is None:
        return None
    a, b, values = form
    found = [_plane(a + ridge * a.diagonal().mean() * torch.eye(len(a)).to(a), b, values) for ridge in RIDGES]
    return min((labels for labels in found if labels is not None), key=graph.energy, default=None)


def _plane(a: Tensor, b: Tensor, values: Tensor) -> Tensor | None:
    """Return the labels of the nearest plane; None where A is not positive definite."""
    order = a.diagonal().argsort(descending=True)
    inverse = torch.linalg.inv(a[order][:, order])
    upper, failed = torch.linalg.cholesky_ex((inverse + inverse.t()) / 2, upper=True)
    if failed:
        return None
    target, labels = -inverse @ b[order], torch.zeros_like(order)
    for i, v in enumerate(order):
        labels[v] = (values[:, v] - target[i]).abs().argmin()
        target[i:] -= (target[i] - values[labels[v], v]) / upper[i, i] * upper[i, i:]
    return labels


def quadratic_form(graph: FactorGraph) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return A (n, n), b (n,) and the values v (c, n) of the labels; None where the field is not quadratic."""
    n, pairs = len(graph), graph.couplings
    if n > MAX_VARIABLES or graph.table_entries > MAX_ENTRIES or graph.hard or len(graph.by_cardinality) != 1:
        return None
    if (c := graph.by_cardinality[0].labels) < 2 or not pairs or any(len(group.index) > 2 for group in pairs):
        return None
    unary = -graph.by_cardinality[0].planes(graph.unary()).double()
    squares, centred = unary.new_zeros(n, c, c), []
    for group in pairs:
        cost = -group.tables.double()
        for axis in range(2):  # what depends on one variable alone
            mean = cost.mean(1 - axis)
            unary = unary.index_add(1, group.scopes[:, axis], mean)
            cost = cost - mean.unsqueeze(1 - axis)
        for axis in range(2):
            along = cost.movedim(axis, 0).movedim(-1, 0)
            squares.index_add_(0, group.scopes[:, axis], along @ along.mT)
        centred.append(cost)
    values = torch.linalg.eigh(squares)[1][..., -1].t()  # (c, n)
    a = unary.new_zeros(n, n)
    for group, cost in zip(pairs, centred, strict=True):
        first, second = (values[:, group.scopes[:, axis]] for axis in range(2))
        b = (cost * first[:, None] * second).sum((0, 1))
        if (cost - b * first[:, None] * second).abs().max() > TOLERANCE * cost.abs().max():
            return None
        i, j = group.scopes.t()
        a.index_put_((i, j), b, accumulate=True).index_put_((j, i), b, accumulate=True)
    if c == 2:
        a.diagonal().fill_(-torch.linalg.eigvalsh(a)[0])
        slope = (values * unary).sum(0)
    else:
        terms = torch.stack([values.square() / 2, values, torch.ones_like(values)], -1).transpose(0, 1)
        found = torch.linalg.lstsq(terms, unary.t()[..., None]).solution
        if ((terms @ found)[..., 0] - unary.t()).abs().max() > TOLERANCE * unary.abs().max():
            return None
        a.diagonal().copy_(found[:, 0, 0])
        slope = found[:, 1, 0]
    return a, slope, values
