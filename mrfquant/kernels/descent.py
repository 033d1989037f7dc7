"""Coordinate descent on the rows of a layer's rounding problem, compiled; see `mrfquant.rounding.solvers`.

A row's fields A (w - w°) are updated incrementally: a weight that keeps its level costs a comparison, one that changes
it a pass over a row of A. After a good start few change, so many sweeps cost little more than one.
"""

import numpy as np

from mrfquant.kernels.jit import jit

MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)  # Knuth's, for random numbers


@jit()
def move(a, field, label, levels, scale, j, new):
    """Give variable j of a row another label; return the change of the energy."""
    change = (levels[new] - levels[label[j]]) * scale[j]
    gained = change * (field[j] + a[j, j] / 2 * change)
    label[j] = new
    column = a[j]
    for i in range(column.shape[0]):
        field[i] += column[i] * change
    return gained


@jit()
def descend(a, field, label, levels, scale, tolerance, sweeps):
    """Give each weight of a row its best level given the others, until none gains; return the change of the energy."""
    d, total = levels.shape[0], 0.0
    for _ in range(sweeps):
        moved = False
        for j in range(a.shape[0]):
            old, s = label[j], scale[j]
            target = levels[old] - field[j] / (a[j, j] * s)
            new = old
            while new + 1 < d and 2 * target > levels[new] + levels[new + 1]:
                new += 1
            while new > 0 and 2 * target <= levels[new] + levels[new - 1]:
                new -= 1
            if new != old:
                change = (levels[new] - levels[old]) * s
                if -change * (field[j] + a[j, j] / 2 * change) > tolerance * s * s * a[j, j]:
                    total += move(a, field, label, levels, scale, j, new)
                    moved = True
        if not moved:
            break
    return total


@jit()
def descend_rows(a, fields, labels, levels, scales, tolerance, sweeps, kicks, moves, first, last):
    """Descend in the rows from `first` to `last`, then again after each kick, which is undone if it did not pay.

    Args:
        a: (n, n). fields: (rows, n) and labels: (rows, n) int64, changed in place. levels: (d,). scales: (rows, n).
        tolerance: smaller gains, in units of the squared scale times the curvature, do not count.
        sweeps: the most sweeps over all weights.
        moves: number of labels that a kick moves to a neighbour, drawn at random, the same at every call.
    """
    n, d = a.shape[0], levels.shape[0]
    for row in range(first, last):
        scale, field, label = scales[row], fields[row], labels[row]
        descend(a, field, label, levels, scale, tolerance, sweeps)
        state = np.uint64(row)
        for _ in range(kicks):
            kept_field, kept_label, total = field.copy(), label.copy(), 0.0
            for _ in range(moves):
                state = state * MULTIPLIER + INCREMENT
                drawn = state >> np.uint64(33)
                j, new = int(drawn % np.uint64(n)), int(drawn // np.uint64(n) % np.uint64(2)) * 2 - 1
                new += label[j]
                if 0 <= new < d:
                    total += move(a, field, label, levels, scale, j, new)
            total += descend(a, field, label, levels, scale, tolerance, sweeps)
            if total >= 0:
                field[:], label[:] = kept_field, kept_label
