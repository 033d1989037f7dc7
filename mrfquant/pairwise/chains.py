"""Forward-backward on chains through a trellis: expected levels, probabilities of states, samples.

A path s has the probability exp(-beta / 2 sum over t of (x_t - C[s_t])²), normalised. A state s has the prefix
s >> bits, the last bits of its predecessors; see `mrfquant.labelling.trellis`. It is compiled on the CPU where numba is
installed, and torch does it elsewhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def expected_levels(x: Tensor, table: Tensor, bits: int, beta: float) -> Tensor:
    """Return the expected levels of chains x (T, chains): (T, chains)."""
    return _pass(x, table, bits, beta, False)[0]


def marginals(x: Tensor, table: Tensor, bits: int, beta: float) -> Tensor:
    """Return the probabilities of the states of chains x (T, chains): (T, chains, states)."""
    return _pass(x, table, bits, beta, True)[1]


def sampled_paths(x: Tensor, table: Tensor, bits: int, beta: float, draws: Tensor) -> Tensor:
    """Return a path for each chain x (T, chains), given draws (T, chains) from 0 to 1: int64 (T, chains)."""
    run = _compiled() if _usable(x) else None
    return (sampled_by_torch if run is None else run.sampled)(x, table.to(x), bits, _factor(beta), draws)


def _pass(x: Tensor, table: Tensor, bits: int, beta: float, whole: bool) -> tuple[Tensor, Tensor]:
    run = _compiled() if _usable(x) else None
    return (by_torch if run is None else run.both)(x, table.to(x), bits, _factor(beta), whole)


def _factor(beta: float) -> float:
    """Return what stands before (x - C)² in the exponent, to base 2."""
    return beta / 2 * math.log2(math.e)


def _usable(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


def forward_by_torch(x: Tensor, table: Tensor, bits: int, factor: float) -> list[Tensor]:
    """Return what the weights before each weight say of its prefix, in logarithms: T of (chains, prefixes)."""
    branches, prefixes = 1 << bits, len(table) >> bits
    messages = [x.new_zeros(x.shape[1], prefixes)]
    for target in x[:-1]:
        cost = messages[-1].repeat_interleave(branches, 1) - factor * (target[:, None] - table).square()
        message = log_sum(cost.view(-1, branches, prefixes), 1)
        messages.append(message - message.amax(1, keepdim=True))
    return messages


def by_torch(x: Tensor, table: Tensor, bits: int, factor: float, whole: bool) -> tuple[Tensor, Tensor]:
    """Return the expected levels, and the probabilities of states if the `whole` is asked for."""
    branches, prefixes = 1 << bits, len(table) >> bits
    messages, mean = forward_by_torch(x, table, bits, factor), torch.empty_like(x)
    u = x.new_empty((*x.shape, len(table)) if whole else (0,))
    ahead = x.new_zeros(x.shape[1], prefixes)
    for t in range(len(x) - 1, -1, -1):
        cost = ahead.repeat(1, branches) - factor * (x[t][:, None] - table).square()
        joint = messages[t].repeat_interleave(branches, 1) + cost
        share = (joint - joint.amax(1, keepdim=True)).exp2()
        share /= share.sum(1, keepdim=True)
        mean[t] = share @ table
        if whole:
            u[t] = share
        ahead = log_sum(cost.view(-1, prefixes, branches), 2)
        ahead = ahead - ahead.amax(1, keepdim=True)
    return mean, u


def sampled_by_torch(x: Tensor, table: Tensor, bits: int, factor: float, draws: Tensor) -> Tensor:
    """Return a path for each chain, drawn from the end to the start."""
    prefixes, messages = len(table) >> bits, forward_by_torch(x, table, bits, factor)
    states = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    choices = torch.arange(len(table), device=x.device).expand(x.shape[1], -1)
    for t in range(len(x) - 1, -1, -1):
        cost = messages[t].gather(1, choices >> bits) - factor * (x[t][:, None] - table[choices]).square()
        share = (cost - cost.amax(1, keepdim=True)).exp2().cumsum(1)
        chosen = (share[:, :-1] <= draws[t][:, None] * share[:, -1:]).sum(1, keepdim=True)
        states[t] = choices.gather(1, chosen)[:, 0]
        choices = (states[t] >> bits)[:, None] + prefixes * torch.arange(1 << bits, device=x.device)
    return states


def log_sum(cost: Tensor, dim: int) -> Tensor:
    """Return log2 of the sum of 2^cost over a dimension."""
    top = cost.amax(dim, keepdim=True)
    return (top + (cost - top).exp2().sum(dim, keepdim=True).log2()).squeeze(dim)


@functools.cache
def _compiled() -> _Loops | None:
    """Return the compiled loops, None without numba."""
    try:
        return _Loops()
    except ImportError:
        return None


class _Loops:
    """`by_torch` and `sampled_by_torch` as compiled loops, a chain at a time."""

    def __init__(self) -> None:
        from mrfquant.kernels import forward_backward, jit

        self._loops, self._parallel = forward_backward, jit.parallel_ranges

    def both(self, x: Tensor, table: Tensor, bits: int, factor: float, whole: bool) -> tuple[Tensor, Tensor]:
        mean, u = torch.empty_like(x.T).contiguous(), x.new_empty(x.shape[1], len(x) if whole else 0, len(table))
        out, shares = mean.numpy(), u.numpy()

        def finish(c: int, *chain: Any) -> None:
            self._loops.backward(*chain, out[c], shares[c])

        self._each(x, table, bits, factor, finish)
        return mean.T, u.transpose(0, 1)

    def sampled(self, x: Tensor, table: Tensor, bits: int, factor: float, draws: Tensor) -> Tensor:
        states, given = torch.empty(x.shape[::-1], dtype=torch.int64), draws.T.contiguous().numpy()
        out = states.numpy()

        def finish(c: int, *chain: Any) -> None:
            self._loops.sample(*chain, given[c], out[c])

        self._each(x, table, bits, factor, finish)
        return states.T

    def _each(self, x: Tensor, table: Tensor, bits: int, factor: float, finish: Callable[..., None]) -> None:
        """Call the forward pass of each chain, and `finish`."""
        targets, levels = x.T.contiguous().numpy(), table.contiguous().numpy()
        parts, half = tuple(range(1 << bits)), self._loops.f32(factor)

        def some(start: int, stop: int) -> None:
            messages = torch.empty(len(x), len(table) >> bits).numpy()
            for c in range(start, stop):
                chain = (targets[c], levels, half, parts, messages)
                self._loops.forward(*chain)
                finish(c, *chain)

        self._parallel(some, len(targets), 1)
