"""The best path of a chain through a trellis, and the levels of paths, compiled; see `mrfquant.labelling.trellis`.

The costs of all states are one vector. A step takes the least over the predecessors of each prefix, p + j * shared for
j < branches: the least of as many contiguous parts of the vector. The successors of a prefix follow each other, so the
second half of a step writes in order, too. The costs of (x - c)² up to what is the same for all states are c (a c - 2 a
x): two multiplications with additions for each.
"""

import numpy as np

from mrfquant.kernels.jit import jit

f32 = np.float32
TWO = f32(2)  # another 2 would make double precision of what it multiplies
RENORMALISED = 16  # steps after which the least cost is brought back to 0
FAST = {"contract", "nsz", "arcp", "nnan"}


@jit(fastmath=FAST)
def least_of_parts(cost, parts, least, back):
    """Write the least over the parts of cost (parts, prefixes) and which part has it, for each prefix."""
    size = len(least)
    for p in range(size):
        best, which = cost[p], np.uint8(0)
        for j in range(1, len(parts)):
            other = cost[j * size + p]
            which = np.uint8(j) if other < best else which
            best = min(other, best)
        least[p] = best
        back[p] = which


@jit(fastmath=FAST)
def add_costs(cost, parts, least, table, factor, slope):
    """Set the cost of each state to the least of its prefix plus c (factor c - slope)."""
    for p in range(len(least)):
        for b in range(len(parts)):
            c = table[p * len(parts) + b]
            cost[p * len(parts) + b] = least[p] + c * (factor * c - slope)


@jit(fastmath=FAST)
def viterbi(x, factor, table, parts, first, last, back, states):
    """Find the path of least sum over t of factor_t (x_t - C[s_t])².

    Args:
        x: (T,) targets. factor: (T,) not negative.
        table: (2^memory,) C, by state.
        parts: a tuple of 2^bits numbers, whose length the loops are compiled for.
        first: the prefix that the path starts with, its first state being one of its successors; -1 for any.
        last: the prefix that it ends with, the last bits of its last state; -1 for any.
        back: uint8 (T, 2^(memory - bits)), room for the way back.
        states: int64 (T,) becomes the path.
    """
    size, steps = len(table) // len(parts), len(x)
    cost, least = np.empty(len(table), f32), np.zeros(size, f32)
    if first >= 0:
        least[:] = np.inf
        least[first] = 0
    for t in range(steps):
        if t > 0:
            least_of_parts(cost, parts, least, back[t])
        if t % RENORMALISED == 0:
            least -= least.min()
        add_costs(cost, parts, least, table, factor[t], TWO * factor[t] * x[t])
    if last >= 0:
        state = last
        for j in range(len(parts)):
            if cost[last + j * size] < cost[state]:
                state = last + j * size
    else:
        state = cost.argmin()
    for t in range(steps - 1, -1, -1):
        states[t] = state
        prefix = state // len(parts)
        state = prefix + size * back[t, prefix]


@jit()
def best_paths(x, factor, table, parts, first, last, states, start, stop):
    """Find the paths of the chains from `start` to `stop`; see `viterbi`, whose arguments have a row for each chain."""
    back = np.empty((x.shape[1], len(table) // len(parts)), np.uint8)
    for c in range(start, stop):
        viterbi(x[c], factor[c], table, parts, first[c], last[c], back, states[c])


@jit()
def decode(data, table, scale, out, bits, memory, chain):
    """Write the levels of chains, times the scales of their rows.

    Args:
        data: uint8 (bytes + 2,) the stream of bits, padded. table: (2^memory,) C, by state. scale: (rows,).
        out: (n, rows), in the order of the chains. chain: weights of a chain.
    """
    n, rows = out.shape
    mask = np.uint32((1 << memory) - 1)
    for j in range(n):
        before = j * rows // chain  # chains
        first = j * rows * bits + before * (memory - bits)
        column = out[j]
        for r in range(rows):
            at = first + r * bits
            byte, shift = at >> 3, np.uint32(24 - memory - (at & 7))
            word = np.uint32(data[byte]) << np.uint32(16) | np.uint32(data[byte + 1]) << np.uint32(8)
            word |= np.uint32(data[byte + 2])
            column[r] = table[word >> shift & mask] * scale[r]
