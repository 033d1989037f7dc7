"""Softmax, sparsemax and their products on the CPU, each in one pass over memory.

torch runs a chain of operations one by one, each over all variables. `mrfquant.kernels.simplex` does the whole chain
for a few variables at a time, compiled by numba. `usable` says for which tensors; for others, and without numba (pip
install 'mrfquant[fast]'), the projections call torch, without a word and with the same results to rounding. Names and
shapes are theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrfquant.kernels.fused import LOG2E, Mean

FIT_SHARE = 2**16  # values that a thread fits at least
SMALLEST_SIZE = 2**14  # values below which torch is as fast: small problems need not wait for numba


def usable(*tensors: Tensor, smallest: int | None = None) -> bool:
    """Return whether the functions below take these: many float32 values on the CPU, contiguous, no autograd."""
    return (
        tensors[0].numel() >= (SMALLEST_SIZE if smallest is None else smallest)
        and all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)
        and all(t.is_contiguous() and not t.requires_grad for t in tensors)
        and not torch.compiler.is_compiling()
        and _kernels() is not None
    )


def weights(aux: Tensor, q: Tensor, beta: float, out: Tensor, w: Tensor) -> None:
    """Write u to `out` (d, m) and the expected weights q u to w (m,)."""
    _run("softmax", aux, beta * LOG2E, q, out, w)


def weights_vjp(u: Tensor, q: Tensor, w: Tensor, g: Tensor, beta: float, exact: bool) -> None:
    """Write the product for the Jacobian 'exact' or else 'reference' to u."""
    _run("weights_product", u, q, w, g, beta, exact)


def unary_vjp(u: Tensor, q: Tensor, g: Tensor, sizes: Sequence[int], costs: Tensor, beta: float, exact: bool) -> None:
    """Write the same for the gradient q gᵀ + c to u, with costs c of the labels (parameters, d), less their mean."""
    _run("unary_product", u, q, g, np.cumsum(sizes), costs.contiguous(), beta, exact)


def mean(aux: Tensor, how: Mean, out: Tensor) -> None:
    """Write t to `out` (m,)."""
    _run("mean", aux, *how.arguments, out)


def mean_vjp(t: Tensor, delta: Tensor, factor: float, share: float, centre: float = 0.0) -> None:
    """Multiply δ by factor (1 - share (t - centre)²)."""
    _run("mean_product", t, delta, factor, factor * share, centre)


def sparsemax(aux: Tensor, beta: float, out: Tensor) -> None:
    """Write u to `out` (d, m), which may be ũ itself."""
    _run("sparsemax", aux, beta, out)


def sparsemax_vjp(u: Tensor, g: Tensor, beta: float) -> None:
    """Write the product with g (d, m) to g."""
    _run("sparsemax_product", u, g, beta)


def scale_runs(x: Tensor, numbers: Tensor, ends: Tensor, offset: int, inverse: bool) -> None:
    """Multiply x (m,), or divide it, by the number of the run that each value is in."""
    from mrfquant.kernels import runs, steps

    steps.launch(runs.scale_runs, x, numbers, ends, offset, inverse)


def fit_runs(
    x: Tensor, numbers: Tensor, ends: Tensor, offset: int, levels: Tensor, midpoints: Tensor, runs: tuple[int, int]
) -> None:
    """Set the numbers of these runs, from first to last, to the factors with which the nearest levels fit x best."""
    from mrfquant.kernels.jit import parallel_ranges
    from mrfquant.kernels.runs import fit_runs as kernel

    arrays = [t.numpy() for t in (x, numbers, ends)]
    fit = functools.partial(kernel, *arrays, offset, levels.numpy(), midpoints.numpy())
    first, last = runs
    parallel_ranges(lambda a, b: fit(first + a, first + b), last - first, max(1, (last - first) * FIT_SHARE // len(x)))


def tree_marginals(
    fields: Tensor,
    order: np.ndarray[Any, Any],
    parents: np.ndarray[Any, Any],
    edges: Tensor,
    factors: Tensor,
    scale: Tensor | None,
) -> Tensor:
    """Return t (rows, n) of two labels on a tree; see `mrfquant.pairwise.trees.SpanningTree.pair_marginals`.

    Args:
        order: the variables that have a parent, parents before their children. parents: of the variables.
    """
    from mrfquant.kernels.jit import parallel_ranges
    from mrfquant.kernels.trees import ROWS, pair_marginals

    out, unit = torch.empty_like(fields), np.float32(2 * LOG2E)
    values = fields[:, :0] if scale is None else scale
    arrays = [t.numpy() for t in (edges, factors * -float(unit), values)]
    kernel = functools.partial(pair_marginals, fields.numpy(), order, parents, *arrays, unit, out.numpy())
    parallel_ranges(kernel, len(fields), ROWS)
    return out


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        from mrfquant.kernels import simplex as projection_kernels
    except ImportError:
        return None
    return projection_kernels


def _run(name: str, first: Tensor, *others: Any) -> None:
    from mrfquant.kernels.steps import launch

    launch(getattr(_kernels(), name), first, *others)
