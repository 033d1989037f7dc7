"""Loops over arrays, compiled by numba. Import this module where it is used: without numba that is an ImportError."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import torch


def jit(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return numba's decorator, without the GIL, and with a cache on disk."""

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder for the cache is writable
            return numba.njit(nogil=True, **options)(function)

    return compiled


def parallel_ranges(function: Callable[[int, int], None], size: int, smallest: int) -> None:
    """Call function(start, stop) for parts of 0 .. size of at least `smallest`, one for each thread that torch has."""
    threads = max(1, min(torch.get_num_threads(), size // smallest))
    bounds = [size * i // threads for i in range(threads + 1)]
    if threads == 1:
        function(0, size)
        return
    others = _helpers(threads - 1).map(function, bounds[1:-1], bounds[2:])
    function(bounds[0], bounds[1])
    list(others)  # waits, and raises what they raised


@functools.cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Return threads beside the caller's, which are kept: to start them takes longer than many a loop."""
    return ThreadPoolExecutor(count)
