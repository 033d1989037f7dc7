"""A lower bound on the energy of each row of a layer, for any labels.

The energy of x = w - w° is 1/2 xᵀ M x + 1/2 sum_j v_j x_j² with M = A - diag(v). For v that leave M positive
semidefinite, its first part lies above its tangents, so with any real y each labelling has at least the energy

    -1/2 yᵀ M y  +  sum_j min over levels x_j of  (M y)_j x_j + 1/2 v_j x_j²

The best y minimises 1/2 yᵀ M y plus the convex envelopes of the separate parts, which are straight between neighbouring
levels: coordinate descent finds it. All rows share v, the larger the better: those of the largest sum_j c_j v_j are
found by Newton's method with a logarithmic barrier, c_j being the mean squared scale of variable j.
"""

from dataclasses import replace

import torch
from torch import Tensor

from mrfquant.rounding.problem import LayerProblem

SWEEPS_BETWEEN_BOUNDS = (0, 10, 10, 20)  # sweeps of coordinate descent; each row takes its best bound
BARRIER_COST = 0.02  # the barrier costs at most this fraction of sum_j c_j v_j
MAX_NEWTON_STEPS = 60


def lower_bound(problem: LayerProblem) -> Tensor:
    """Return a lower bound on the energy of each row, (rows,), for any labels at the problem's scales."""
    a, x = problem.a.double(), (problem.choices() - problem.w).double()
    v = multipliers(a, problem.scale.double().square().mean(1))
    m, y = a - v.diag(), torch.zeros_like(x[0])
    relaxed = replace(problem, a=m, w=y.clone())
    best = y[0]
    for sweeps in SWEEPS_BETWEEN_BOUNDS:
        for _ in range(sweeps):
            _descend(relaxed, y, x, v)
        my = m @ y
        separate = (my * x + v[:, None] / 2 * x.square()).amin(0)
        best = torch.maximum(best, separate.sum(0) - (y * my).sum(0) / 2)
    return best.to(problem.w.dtype)


def multipliers(a: Tensor, weight: Tensor) -> Tensor:
    """Return v (n,) of about the largest weighted sum for which A - diag(v) is positive definite."""
    weight = weight.clamp(min=1e-12 * weight.max())
    v = torch.full_like(weight, torch.linalg.eigvalsh(a)[0].item() / 2)
    barrier = (weight * v).sum() / len(v)
    for _ in range(MAX_NEWTON_STEPS):
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(a - v.diag()))
        slope = weight / barrier - inverse.diagonal()
        step = torch.linalg.solve(inverse.square(), slope)
        decrement = (step * slope).sum().clamp(min=0).sqrt()
        v = v + step / (1 + decrement)  # stays within: the barrier is self-concordant
        if decrement < 1:
            if barrier * len(v) <= BARRIER_COST * (weight * v).sum():
                break
            barrier = barrier / 3
    return v


def _descend(relaxed: LayerProblem, y: Tensor, x: Tensor, v: Tensor) -> None:
    """Sweep once over y, minimising 1/2 yᵀ M y + the envelopes of 1/2 v x² on the choices x (d, n, rows)."""
    m, low, high = relaxed.a.diagonal(), x[:-1], x[1:]

    def update(j: int, field: Tensor) -> Tensor:
        others, slope = field - m[j] * y[j], v[j] / 2 * (low[:, j] + high[:, j])
        at = (-(others + slope) / m[j]).clamp(low[:, j], high[:, j])  # the best of each piece
        values = m[j] / 2 * at.square() + (others + slope) * at - v[j] / 2 * low[:, j] * high[:, j]
        return at.gather(0, values.argmin(0)[None])[0]

    relaxed.sweep(y, update)
