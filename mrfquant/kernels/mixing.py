"""Mixed weights in the basis of the network, compiled; see `mrfquant.labelling.mixing`, whose operations these are.

Some rows of the weight matrix are computed at once, side by side in memory: all operations are on vectors, and the rows
stay in the cache. Nothing is contracted or reordered, so that the results are torch's to the bit.
"""

import numpy as np

from mrfquant.kernels.jit import jit

LANES = 64  # rows computed at once


@jit()
def combine(odd, x, out):
    """Multiply each `len(odd)` variables of x (n, lanes) by the matrix; out has the same shape."""
    m = len(odd)
    for p in range(0, len(x), m):
        for i in range(m):
            to, first = out[p + i], x[p]
            for r in range(LANES):
                to[r] = first[r] * odd[i, 0]
            for j in range(1, m):
                other = x[p + j]
                for r in range(LANES):
                    to[r] = to[r] + other[r] * odd[i, j]


@jit()
def butterflies(x, stride):
    """Apply a Hadamard matrix to the variables i * stride + k of x (n, lanes), for each k < stride, in place."""
    n = len(x)
    while stride < n:
        for p in range(0, n, 2 * stride):
            for i in range(p, p + stride):
                one, two = x[i], x[i + stride]
                for r in range(LANES):
                    a, b = one[r], two[r]
                    one[r] = a + b
                    two[r] = a - b
        stride *= 2


@jit()
def unmix(x, odd, root, factor, out, start, stop):
    """Write rows from `start` to `stop` of the weights to out (rows, n).

    Args:
        x: (n, rows) mixed weights. odd: (m, m) Hartley matrix of the odd factor of n. root: what makes K orthogonal.
        factor: (n,) the scale of each input with its sign.
    """
    n, m = len(x), len(odd)
    one, two = np.zeros((n, LANES), np.float32), np.zeros((n, LANES), np.float32)
    for first in range(start, stop, LANES):
        count = min(LANES, stop - first)
        for j in range(n):
            one[j, :count] = x[j, first : first + count]
        if m > 1:
            combine(odd, one, two)
        y = two if m > 1 else one
        butterflies(y, m)
        for j in range(0, n, LANES):  # tiles that stay in the cache while they are transposed
            for r in range(count):
                for i in range(j, min(n, j + LANES)):
                    out[first + r, i] = y[i, r] * root * factor[i]
