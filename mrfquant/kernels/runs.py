"""Numbers that runs of values share, in one pass over these; needs numba."""

import numpy as np

from mrfquant.kernels.jit import jit


@jit(error_model="numpy")
def scale_runs(x, numbers, ends, offset, inverse, start, stop):
    """Multiply x, or divide it, from `start` to `stop` by the number of the run that each value is in.

    Args:
        numbers: of the runs.
        ends: of the runs, increasing, counted from `offset` places before x.
    """
    run = np.searchsorted(ends, offset + start, side="right")
    while start < stop:
        last, number = min(stop, ends[run] - offset), numbers[run]
        if inverse:
            for j in range(start, last):
                x[j] = x[j] / number
        else:
            for j in range(start, last):
                x[j] = x[j] * number
        start, run = last, run + 1


@jit()
def write_runs(numbers, ends, place, run, out):
    """Write the numbers of the values from `place` on, which is in this run, to `out`; return the last one's run."""
    first = 0
    while True:
        last = min(len(out), ends[run] - place)
        out[first:last] = numbers[run]
        if last == len(out):
            return run
        first, run = last, run + 1


@jit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def fit_runs(x, numbers, ends, offset, levels, midpoints, start, stop):
    """Set the numbers of the runs from `start` to `stop` to the least-squares factor of the levels nearest to x.

    A run whose values are all nearest to 0 begins again at its largest magnitude, and stays if it has none.
    """
    for run in range(start, stop):
        first = max(0, ends[run - 1] - offset) if run else 0
        last, inverse = ends[run] - offset, np.float32(1) / numbers[run]
        product, square, largest = np.float32(0), np.float32(0), np.float32(0)
        for j in range(first, last):
            z, level = x[j] * inverse, levels[0]
            for place in range(len(midpoints)):
                level = levels[place + 1] if z > midpoints[place] else level
            product += x[j] * level
            square += level * level
            largest = max(largest, abs(x[j]))
        if product > 0:
            numbers[run] = product / square
        elif largest > 0:
            numbers[run] = largest
