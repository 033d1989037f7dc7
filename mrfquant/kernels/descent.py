"""Coordinate descent on the rows of a layer's rounding problem, compiled; see `mrfquant.rounding.solvers`.

A row's fields A (w - w°) are kept up to date: a weight that keeps its level costs a comparison, one that changes it a
pass over a row of A. After a good start few change, so many sweeps cost little more than one.
"""

from __future__ import annotations

from mrfquant.kernels.jit import jit


@jit()
def descend_rows(a, fields, labels, levels, scale, tolerance, sweeps, first, last):
    """Give each weight of the rows from `first` to `last` its best level given the others, until none gains.

    Args:
        a: (n, n). fields: (rows, n) and labels: (rows, n) int64, changed in place. levels: (d,). scale: (rows,).
        tolerance: gains up to it, in units of the squared scale times the curvature, do not count.
        sweeps: at most so many over all weights.
    """
    n, d = a.shape[0], levels.shape[0]
    for row in range(first, last):
        s, field, label = scale[row], fields[row], labels[row]
        least = tolerance * s * s
        for _ in range(sweeps):
            moved = False
            for j in range(n):
                old = label[j]
                target = levels[old] - field[j] / (a[j, j] * s)
                new = old
                while new + 1 < d and 2 * target > levels[new] + levels[new + 1]:
                    new += 1
                while new > 0 and 2 * target < levels[new] + levels[new - 1]:
                    new -= 1
                if new != old:
                    change = (levels[new] - levels[old]) * s
                    if -change * (field[j] + a[j, j] / 2 * change) > least * a[j, j]:
                        label[j] = new
                        column = a[j]
                        for i in range(n):
                            field[i] += column[i] * change
                        moved = True
            if not moved:
                break
