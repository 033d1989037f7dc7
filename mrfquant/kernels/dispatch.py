"""Compiled loops where they are there and worth it.

torch runs a chain of operations one by one, each over all variables. The loops of `mrfquant.kernels` do the whole chain
for a few variables at a time, compiled by numba (pip install 'mrfquant[fast]'). `usable` says for which tensors; for
others, and without numba, callers take torch's operations, without a word and with the same results to rounding.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIN_SIZE = 2**14  # values below which torch is as fast: small problems need not wait for numba
THREAD_SHARE = 2**22  # values that are worth a thread, while torch's own still spin from the operation before


@functools.cache
def loops(module: str) -> Any:
    """Return a module of compiled loops by its name; None without numba."""
    try:
        return importlib.import_module(f"mrfquant.kernels.{module}")
    except ImportError:
        return None


def usable(*tensors: Tensor, smallest: int | None = None) -> bool:
    """Return whether loops take these: many float32 values on the CPU, contiguous, no autograd, and numba."""
    return (
        tensors[0].numel() >= (MIN_SIZE if smallest is None else smallest)
        and all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)
        and all(t.is_contiguous() and not t.requires_grad for t in tensors)
        and not torch.compiler.is_compiling()
        and loops("simplex") is not None
    )


def run(kernel: str, first: Tensor, *others: Any, size: int | None = None, smallest: int = 1) -> None:
    """Call the kernel of a name, 'module.function', for all places of what it works on, with its arguments.

    Args:
        kernel: takes arrays and numbers, then the places from which and up to which it works.
        first, others: its arguments. Tensors are shared with it as arrays; numbers are float32 there.
        size: of the places; those along the last dimension of `first` by default.
        smallest: with a size, the places that a thread takes at least.
    """
    arrays: list[Any] = []
    for argument in (first, *others):
        if isinstance(argument, Tensor):
            arrays.append(argument.numpy())
        else:
            arrays.append(np.float32(argument) if isinstance(argument, float) else argument)
    module, _, name = kernel.partition(".")
    function = getattr(loops(module), name)
    if size is None:
        size = first.shape[-1]
        if first.numel() < 2 * THREAD_SHARE:
            function(*arrays, 0, size)
            return
        smallest = THREAD_SHARE * size // first.numel()
    loops("jit").parallel_ranges(functools.partial(function, *arrays), size, smallest)
