"""The best paths of chains through a trellis: compiled on the CPU where numba is installed, by torch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from mrfquant.kernels import dispatch

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
    compiled = x.device.type == "cpu" and x.dtype == torch.float32 and dispatch.loops("viterbi") is not None
    return (by_loops if compiled else by_torch)(x, factor, table.to(x), bits, first, last)


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


def by_loops(x: Tensor, factor: Tensor, table: Tensor, bits: int, first: Tensor, last: Tensor) -> Tensor:
    """Return the best paths by compiled loops, a chain at a time."""
    states = torch.empty(x.shape[::-1], dtype=torch.int64)
    given = (x.T.contiguous(), factor.T.contiguous(), table.contiguous(), tuple(range(1 << bits)))
    ends = (first.contiguous(), last.contiguous())
    dispatch.run("viterbi.best_paths", *given, *ends, states, size=len(states))
    return states.T
