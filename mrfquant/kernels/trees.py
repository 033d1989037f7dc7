"""Sum-product on a tree for many rows of variables with two labels, compiled; see `mrfquant.pairwise.trees`.

Fields H and couplings K are in units in which e^(-2 |h|) is 2^(-|H|). The message of a variable with the field H
through the coupling K is log2 of cosh((H + K) / 2) / cosh((H - K) / 2):

    sign(H K) min(|H|, |K|) + log2 (1 + 2^(-|H + K|)) / (1 + 2^(-|H - K|))

A few rows are computed at once, side by side in memory: their variables stay in the cache, and operations are on
vectors.
"""

import math

import numpy as np

from mrfquant.kernels.jit import jit
from mrfquant.kernels.simplex import ONE, OPTIONS, ZERO, f32, power_of_two

ROWS = 32  # computed at once
TWO = f32(2)
L1, L3, L5, L7, L9, L11 = (f32(2 / math.log(2) / n) for n in range(1, 12, 2))


@jit(**OPTIONS)
def message(field, coupling):
    """Return the message of a variable with a field through a coupling."""
    total, difference = abs(field + coupling), abs(field - coupling)
    low, high = power_of_two(-total), power_of_two(-difference)
    s = (low - high) / (TWO + low + high)  # log2 of the ratio is 2 / ln 2 times atanh(s), and |s| <= 1/3
    t = s * s
    return (total - difference) / TWO + s * (L1 + t * (L3 + t * (L5 + t * (L7 + t * (L9 + t * L11)))))


@jit(**OPTIONS)
def pair_marginals(fields, order, parents, edges, factors, scale, unit, out, start, stop):
    """Write t = u_2 - u_1 of the rows from `start` to `stop` to out (rows, n).

    Args:
        fields: (rows, n).
        order: the variables that have a parent, parents before their children. parents: (n,).
        edges: (n,) the couplings with the parents. factors: (rows,) multiply them, with a sign.
        scale: (rows, n) the values of the labels are minus it and it; (rows, 0) if it is 1.
        unit: converts fields to the kernel's units.
    """
    n, scaled = fields.shape[1], scale.shape[1] > 0
    belief, told, coupling = np.zeros((n, ROWS), f32), np.empty((n, ROWS), f32), np.empty((n, ROWS), f32)
    factor, values = np.zeros(ROWS, f32), np.zeros((n if scaled else 0, ROWS), f32)
    for first in range(start, stop, ROWS):
        count = min(ROWS, stop - first)
        for r in range(count):
            factor[r] = factors[first + r]
            for j in range(n):
                belief[j, r] = fields[first + r, j] * unit
            if scaled:
                for j in range(n):
                    values[j, r] = scale[first + r, j]
        for j in order[::-1]:
            c, here, above, tells = coupling[j], belief[j], belief[parents[j]], told[j]
            for r in range(ROWS):
                c[r] = edges[j] * factor[r]
            if scaled:
                child, parent = values[j], values[parents[j]]
                for r in range(ROWS):
                    c[r] *= child[r] * parent[r]
            for r in range(ROWS):
                tells[r] = message(here[r], c[r])
            for r in range(ROWS):
                above[r] += tells[r]
        for j in order:
            c, here, above, tells = coupling[j], belief[j], belief[parents[j]], told[j]
            for r in range(ROWS):
                here[r] += message(above[r] - tells[r], c[r])  # what the parent believes without this child
        for j in range(n):
            here = belief[j]
            for r in range(ROWS):
                h = power_of_two(-abs(here[r]))
                t = (ONE - h) / (ONE + h)
                here[r] = -t if here[r] < ZERO else t
        for r in range(count):
            for j in range(n):
                out[first + r, j] = belief[j, r]
