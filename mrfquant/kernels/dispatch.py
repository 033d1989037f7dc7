"""Softmax, sparsemax and their products on the CPU, each in one pass over memory.

torch runs a chain of operations one by one, each over all variables. `mrfquant.kernels.simplex` does the whole chain
for a few variables at a time, compiled by numba. `usable` says for which tensors; for others, and without numba (pip
install 'mrfquant[fast]'), the projections call torch, without a word and with the same results to rounding. Names and
shapes are theirs.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

SMALLEST = 2**14  # values below which torch is as fast: small problems need not wait for numba
SHARE = 2**22  # values that are worth a thread, while torch's own still spin from the operation before


def usable(*tensors: Tensor) -> bool:
    """Whether the functions below take these: many values, float32 on the CPU, contiguous, without autograd."""
    return (
        tensors[0].numel() >= SMALLEST
        and all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)
        and all(t.is_contiguous() and not t.requires_grad for t in tensors)
        and _kernels() is not None
    )


def weights(aux: Tensor, q: Tensor, beta: float, out: Tensor, w: Tensor) -> None:
    """u into `out` (d, m) and the expected weights q u into w (m,)."""
    _run("softmax", aux, beta * math.log2(math.e), q, out, w)


def weights_vjp(u: Tensor, q: Tensor, w: Tensor, g: Tensor, beta: float, exact: bool) -> None:
    """The product for the Jacobian 'exact' or else 'reference', into u."""
    _run("exact_product" if exact else "reference_product", u, q, w, g, beta)


def pair(aux: Tensor, beta: float, out: Tensor) -> None:
    """t into `out` (m,)."""
    _run("tanh", aux, 2 * beta * math.log2(math.e), out)


def pair_vjp(t: Tensor, delta: Tensor, factor: float, a: float) -> None:
    """factor (1 - a t²) δ into δ."""
    _run("tanh_product", t, delta, factor, factor * a)


def sparsemax(aux: Tensor, beta: float, out: Tensor) -> None:
    """u into `out` (d, m), which may be ũ itself."""
    _run("sparsemax", aux, beta, out)


def sparsemax_vjp(u: Tensor, g: Tensor, beta: float) -> None:
    """The product with g (d, m), into g."""
    _run("sparsemax_product", u, g, beta)


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        from mrfquant.kernels import simplex as projection_kernels
    except ImportError:
        return None
    return projection_kernels


def _run(name: str, first: Tensor, *others: Tensor | float) -> None:
    """Call a kernel for all m variables of its first argument, of shape (m,) or (d, m)."""
    from mrfquant.kernels.jit import parallel_ranges

    arrays = [a.numpy() if isinstance(a, Tensor) else np.float32(a) for a in (first, *others)]
    m = first.shape[-1]
    parallel_ranges(functools.partial(getattr(_kernels(), name), *arrays), m, SHARE * m // first.numel())
