"""Forward-backward on chains through a trellis: expected levels, probabilities of states, samples.

A path s has the probability exp(-beta / 2 sum over t of (x_t - C[s_t])²), normalised. A state s has the prefix
s >> bits, the last bits of its predecessors; see `mrfquant.labelling.trellis`. It is compiled on the CPU where numba is
installed, and torch does it elsewhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrfquant.kernels import dispatch


def expected_levels(x: Tensor, table: Tensor, bits: int, beta: float) -> Tensor:
    """Return the expected levels of chains x (T, chains): (T, chains)."""
    return _pass(x, table, bits, beta, False)[0]


def marginals(x: Tensor, table: Tensor, bits: int, beta: float) -> Tensor:
    """Return the probabilities of the states of chains x (T, chains): (T, chains, states)."""
    return _pass(x, table, bits, beta, True)[1]


def sampled_paths(x: Tensor, table: Tensor, bits: int, beta: float, draws: Tensor) -> Tensor:
    """Return a path for each chain x (T, chains), given draws (T, chains) from 0 to 1: int64 (T, chains)."""
    return (sampled_by_loops if _has_loops(x) else sampled_by_torch)(x, table.to(x), bits, _factor(beta), draws)


def _pass(x: Tensor, table: Tensor, bits: int, beta: float, whole: bool) -> tuple[Tensor, Tensor]:
    return (by_loops if _has_loops(x) else by_torch)(x, table.to(x), bits, _factor(beta), whole)


def _factor(beta: float) -> float:
    """Return what stands before (x - C)² in the exponent, to base 2."""
    return beta / 2 * math.log2(math.e)


def _has_loops(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and dispatch.loops("forward_backward") is not None


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


def by_loops(x: Tensor, table: Tensor, bits: int, factor: float, whole: bool) -> tuple[Tensor, Tensor]:
    """Do what `by_torch` does in compiled loops, a chain at a time."""
    mean, u = x.new_empty(x.shape[::-1]), x.new_empty(x.shape[1], len(x) if whole else 0, len(table))
    given = (x.T.contiguous(), table.contiguous(), factor, tuple(range(1 << bits)))
    dispatch.run("forward_backward.all_means", *given, mean, u, size=x.shape[1])
    return mean.T, u.transpose(0, 1)


def sampled_by_loops(x: Tensor, table: Tensor, bits: int, factor: float, draws: Tensor) -> Tensor:
    """Do what `sampled_by_torch` does in compiled loops, a chain at a time."""
    states = torch.empty(x.shape[::-1], dtype=torch.int64)
    given = (x.T.contiguous(), table.contiguous(), factor, tuple(range(1 << bits)), draws.T.contiguous())
    dispatch.run("forward_backward.all_samples", *given, states, size=x.shape[1])
    return states.T
