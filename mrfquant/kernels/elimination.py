"""Elimination orders of small graphs, compiled, so that many can be tried; see `mrfquant.mrf.decomposition`."""

import numpy as np

from mrfquant.kernels.layout import draw, jit

M1, M2, M4 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)


@jit()
def ones(x):
    """Return the number of bits that are set."""
    x = x - ((x >> np.uint64(1)) & M1)
    x = (x & M2) + ((x >> np.uint64(2)) & M2)
    x = (x + (x >> np.uint64(4))) & M4
    x = x + (x >> np.uint64(8))
    x = x + (x >> np.uint64(16))
    return np.int64((x + (x >> np.uint64(32))) & np.uint64(127))


@jit()
def members(row, out):
    """List the bits that are set in a row of words; return their number."""
    count = 0
    for w in range(len(row)):
        word, bit = row[w], 64 * w
        while word:
            if word & np.uint64(1):
                out[count] = bit
                count += 1
            word >>= np.uint64(1)
            bit += 1
    return count


@jit()
def missing(near, v, around):
    """Return the number of edges that the neighbours of a variable lack among each other."""
    many, joined = members(near[v], around), 0
    for i in range(many):
        row = near[around[i]]
        for w in range(len(row)):
            joined += ones(row[w] & near[v, w])
    return (many * (many - 1) - joined) // 2


@jit()
def weight(near, v, sizes, around):
    """Return log2 of the size of the table that eliminating a variable creates."""
    total = sizes[v]
    for i in range(members(near[v], around)):
        total += sizes[around[i]]
    return total


@jit()
def eliminate(near, sizes, by_fill, cap, state, order):
    """Eliminate variables, each time one of least cost: missing edges or the table's size; ties at random.

    Args:
        near: (n, words) uint64, the neighbours of each variable as bits; modified.
        sizes: (n,) log2 of the numbers of labels.
        by_fill: the missing edges count first, else the size.
        cap: a size at which it gives up.
        order: (n,) becomes the order.

    It returns log2 of the largest table, and of the sum of all; inf if it gave up.
    """
    n = len(sizes)
    around, further = np.empty(n, np.int64), np.empty(n, np.int64)
    first, second, gone = np.empty(n), np.empty(n), np.zeros(n, np.bool_)
    stale = np.ones(n, np.bool_)
    largest, total = 0.0, 0.0
    for step in range(n):
        best, ties = -1, 0
        for v in range(n):
            if gone[v]:
                continue
            if stale[v]:
                fill, size = float(missing(near, v, around)), weight(near, v, sizes, around)
                first[v], second[v] = (fill, size) if by_fill else (size, fill)
                stale[v] = False
            better = best < 0 or first[v] < first[best] or (first[v] == first[best] and second[v] < second[best])
            if better:
                best, ties = v, 1
            elif first[v] == first[best] and second[v] == second[best]:
                ties += 1
                if draw(state, ties) == 0:
                    best = v
        v = best
        size = second[v] if by_fill else first[v]
        if size > cap:
            return np.inf, np.inf
        largest = max(largest, size)
        total += 2.0**size
        order[step], gone[v] = v, True
        many = members(near[v], around)
        for i in range(many):  # the neighbours become neighbours of each other
            a = around[i]
            near[a, v >> 6] &= ~(np.uint64(1) << np.uint64(v & 63))
            for w in range(near.shape[1]):
                near[a, w] |= near[v, w]
            near[a, a >> 6] &= ~(np.uint64(1) << np.uint64(a & 63))
        for i in range(many):
            stale[around[i]] = True
            for j in range(members(near[around[i]], further)):
                stale[further[j]] = True
    return largest, np.log2(max(total, 1.0))
