"""The best paths of chains through a trellis: compiled on the CPU where numba is installed, by torch elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

RENORMALISED = 16  # steps after which the least cost is brought back to 0


def best_paths(
    x: Tensor, factor: Tensor, table: Tensor, bits: int, first: Tensor | None = None, last: Tensor | None = None
) -> Tensor:
    """Return the states of the paths with the least sum over t of factor_t (x_t - C[s_t])²: int64 (T, chains).

    A state s has the predecessors p + j * prefixes for p = s >> bits, j < 2^bits, prefixes = states / 2^bits.

    Args:
        x: (T, chains) targets. factor: (T, chains) not negative.
        table: (states,) the levels C, by state.
        bits: read for each weight.
        first: (chains,) the prefixes that the first states succeed; -1 for any.
        last: (chains,) the prefixes that the last states end with; -1 for any.
    """
    free = torch.full((x.shape[1],), -1, dtype=torch.int64, device=x.device)
    first, last = (free if ends is None else ends for ends in (first, last))
    compiled = _compiled() if x.device.type == "cpu" and x.dtype == torch.float32 else None
    return (by_torch if compiled is None else compiled)(x, factor, table.to(x), bits, first, last)


def by_torch(x: Tensor, factor: Tensor, table: Tensor, bits: int, first: Tensor, last: Tensor) -> Tensor:
    """Return the best paths, all states and chains at once, one step after the other."""
    steps, chains = x.shape
    branches, prefixes = 1 << bits, len(table) >> bits
    numbers, chain = torch.arange(prefixes, device=x.device), torch.arange(chains, device=x.device)
    barred = (first >= 0)[:, None] & (first[:, None] != numbers)
    least, back = x.new_zeros(chains, prefixes).masked_fill(barred, torch.inf), []
    cost = x.new_zeros(chains, len(table))
    for t in range(steps):
        if t % RENORMALISED == 0:
            least = least - least.amin(1, keepdim=True)
        cost = least.repeat_interleave(branches, 1) + factor[t, :, None] * (x[t, :, None] - table).square()
        least, which = cost.view(chains, branches, prefixes).min(1)
        back.append(which.to(torch.uint8))
    barred = (last >= 0)[:, None] & (last[:, None] != numbers)
    state = cost.masked_fill(barred.repeat(1, branches), torch.inf).argmin(1)
    states = [state]
    for which in reversed(back[:-1]):
        prefix = state >> bits
        state = prefix + prefixes * which[chain, prefix].long()
        states.append(state)
    return torch.stack(states[::-1])


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, int, Tensor, Tensor], Tensor] | None:
    """Return the same as a compiled loop, None without numba."""
    try:
        from mrfquant.kernels.jit import parallel_ranges
        from mrfquant.kernels.viterbi import viterbi
    except ImportError:
        return None

    def run(x: Tensor, factor: Tensor, table: Tensor, bits: int, first: Tensor, last: Tensor) -> Tensor:
        states = torch.empty(x.shape[::-1], dtype=torch.int64)
        arrays = [part.contiguous().numpy() for part in (x.T, factor.T, table, first, last)]
        parts, out = tuple(range(1 << bits)), states.numpy()

        def some(start: int, stop: int) -> None:
            targets, factors, levels, starts, ends = arrays
            back = np.empty((x.shape[0], len(table) >> bits), np.uint8)
            for c in range(start, stop):
                viterbi(targets[c], factors[c], levels, parts, starts[c], ends[c], back, out[c])

        parallel_ranges(some, len(out), 1)
        return states.T

    return run
