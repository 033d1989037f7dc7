"""Marginals and samples of a chain through a trellis, compiled; see `mrfquant.pairwise.chains`.

Messages are logarithms to base 2 with a maximum of 0, so that nothing is lost however large beta is. As in
`mrfquant.kernels.viterbi`, all states are one vector: the predecessors of a prefix are contiguous parts of it, its
successors follow each other.
"""

import math

import numpy as np

from mrfquant.kernels.jit import jit
from mrfquant.kernels.simplex import power_of_two

f32, i32 = np.float32, np.int32
FAST = {"contract", "nsz", "arcp", "nnan", "ninf", "reassoc"}
OPTIONS = {"error_model": "numpy", "fastmath": FAST}  # divides as NumPy does
ZERO, ONE = f32(0), f32(1)
EXPONENT, MANTISSA = i32(0xFF << 23), i32(23)
ROOT_HALF = i32(np.float32(math.sqrt(0.5)).view(np.int32))
L1, L3, L5, L7, L9 = (f32(2 / math.log(2) / n) for n in range(1, 11, 2))  # of log2((1 + z) / (1 - z)) in z


@jit(**OPTIONS)
def log_two(x):
    """Return log2 x for x >= 1."""
    x = f32(x)
    bits = x.view(i32)
    exponent = i32((bits - ROOT_HALF) & EXPONENT)
    m = i32(bits - exponent).view(f32)  # from sqrt(1/2) to sqrt(2)
    z = (m - ONE) / (m + ONE)
    zz = z * z
    return f32(i32(exponent >> MANTISSA)) + z * (L1 + zz * (L3 + zz * (L5 + zz * (L7 + zz * L9))))


@jit(**OPTIONS)
def largest(x):
    """Return the maximum of x."""
    top = x[0]
    for p in range(1, len(x)):
        top = max(top, x[p])
    return top


@jit(**OPTIONS)
def meet(cost, parts, message):
    """Write the logarithm of the sum over the predecessors of each prefix, less the maximum."""
    size = len(message)
    for p in range(size):
        top, total = cost[p], ZERO
        if len(parts) == 2:  # one power in the place of two
            top, total = max(top, cost[size + p]), ONE + power_of_two(-abs(top - cost[size + p]))
        else:
            for j in range(1, len(parts)):
                top = max(top, cost[j * size + p])
            for j in range(len(parts)):
                total += power_of_two(cost[j * size + p] - top)
        message[p] = top + log_two(total)
    top = largest(message)
    for p in range(size):
        message[p] -= top


@jit(**OPTIONS)
def forward(x, table, factor, parts, messages):
    """Write what the weights before each weight say of its prefix.

    Args:
        x: (T,) natural parameters. table: (2^memory,) C, by state.
        factor: of (x - C)² in the exponent, to base 2.
        parts: a tuple of 2^bits numbers, whose length the loops are compiled for.
        messages: (T, 2^(memory - bits)).
    """
    cost, branches = np.empty(len(table), f32), len(parts)
    messages[0] = ZERO
    for t in range(len(x) - 1):
        target, past = x[t], messages[t]
        for p in range(len(past)):
            for b in range(branches):
                off = target - table[p * branches + b]
                cost[p * branches + b] = past[p] - factor * off * off
        meet(cost, parts, messages[t + 1])


@jit(**OPTIONS)
def add_energies(target, table, factor, parts, ahead, cost):
    """Set the cost of each state to what the weights after it say of its last bits, and its own energy."""
    size = len(ahead)
    for j in range(len(parts)):
        for p in range(size):
            off = target - table[j * size + p]
            cost[j * size + p] = ahead[p] - factor * off * off


@jit(**OPTIONS)
def add_up_successors(cost, parts, table, message, level):
    """Write the logarithm of the sum over the successors of each prefix, and their expected level.

    For two of them one power does, in the place of two.
    """
    branches = len(parts)
    for p in range(len(level)):
        first = p * branches
        top, total, moment = cost[first], ZERO, ZERO
        if branches == 2:
            other, c, d = cost[first + 1], table[first], table[first + 1]
            u = power_of_two(-abs(top - other))
            moment = c + u * d if top > other else d + u * c
            top, total = max(top, other), ONE + u
        else:
            for b in range(1, branches):
                top = max(top, cost[first + b])
            for b in range(branches):
                u = power_of_two(cost[first + b] - top)
                total += u
                moment += u * table[first + b]
        message[p] = top + log_two(total)
        level[p] = moment / total


@jit(**OPTIONS)
def backward(x, table, factor, parts, messages, mean, marginals):
    """Write the expected levels, and the probabilities of states if there is room for them.

    Args:
        x, table, factor, parts, messages: see `forward`, which has been called.
        mean: (T,). marginals: (T, 2^memory), or (0, 2^memory).
    """
    branches, size = len(parts), len(table) // len(parts)
    ahead, joint, level, cost = np.zeros(size, f32), np.empty(size, f32), np.empty(size, f32), np.empty(len(table), f32)
    for t in range(len(x) - 1, -1, -1):
        past = messages[t]
        add_energies(x[t], table, factor, parts, ahead, cost)
        add_up_successors(cost, parts, table, ahead, level)
        for p in range(size):
            joint[p] = past[p] + ahead[p]
        top, total, moment = largest(joint), ZERO, ZERO
        for p in range(size):
            u = power_of_two(joint[p] - top)
            total += u
            moment += u * level[p]
        mean[t] = moment / total
        if len(marginals) > 0:
            for p in range(size):
                for b in range(branches):
                    marginals[t, p * branches + b] = power_of_two(past[p] + cost[p * branches + b] - top) / total
        top = largest(ahead)
        for p in range(size):
            ahead[p] -= top


@jit()
def sample(x, table, factor, parts, messages, draws, states):
    """Draw a path from the end to the start, given draws (T,) from 0 to 1; see `forward`, which has been called."""
    branches, size = len(parts), len(table) // len(parts)
    first, step, count = 0, 1, len(table)  # the states that may come next
    weight = np.empty(len(table), np.float64)
    for t in range(len(x) - 1, -1, -1):
        top = -np.inf
        for i in range(count):
            s = first + i * step
            weight[i] = messages[t, s // branches] - factor * (x[t] - table[s]) ** 2
            top = max(top, weight[i])
        total = 0.0
        for i in range(count):
            total += 2.0 ** (weight[i] - top)
            weight[i] = total
        chosen = 0
        while chosen < count - 1 and weight[chosen] <= draws[t] * total:
            chosen += 1
        states[t] = first + chosen * step
        first, step, count = states[t] // branches, size, branches


@jit()
def all_means(x, table, factor, parts, means, marginals, start, stop):
    """Do `forward` and `backward` for the chains from `start` to `stop`, each a row of what has one for each weight."""
    messages = np.empty((x.shape[1], len(table) // len(parts)), f32)
    for c in range(start, stop):
        forward(x[c], table, factor, parts, messages)
        backward(x[c], table, factor, parts, messages, means[c], marginals[c])


@jit()
def all_samples(x, table, factor, parts, draws, states, start, stop):
    """Do `forward` and `sample` for the chains from `start` to `stop`, likewise."""
    messages = np.empty((x.shape[1], len(table) // len(parts)), f32)
    for c in range(start, stop):
        forward(x[c], table, factor, parts, messages)
        sample(x[c], table, factor, parts, messages, draws[c], states[c])
