"""Product, optimizer and projection of variables with one number a weight, in one pass over memory; needs numba.

The optimizers round where torch's fused ones do, so that results are theirs to the bit where torch has AVX2.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from mrfquant.kernels import dispatch
from mrfquant.kernels.fused import NO_COSTS, Costs, Rule
from mrfquant.kernels.jit import jit, parallel_ranges
from mrfquant.kernels.runs import write_runs
from mrfquant.kernels.simplex import ONE, TILE, ZERO, add_costs, add_line_costs, f32, mean, mean_product

EMPTY = torch.empty(0)
NO_RUNS = np.zeros(0, np.float32), np.zeros(0, np.int64), 0  # scales, ends, place
LANES = 8  # floats that torch moves at once; it rounds those that are left over in another place


@intrinsic
def fma(context, a, b, c):
    """Compute a b + c, rounded once."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


@jit(error_model="numpy")  # not contracted: only where it says so
def adam(x, g, average, square, settings, whole):
    """Take a step of Adam, in torch's order of rounding for the first `whole` variables; may overwrite g.

    Its settings are those that `count_step` returns.
    """
    decay, kept, share, beta2 = settings[0], settings[1], settings[2], settings[3]
    square_share, correction, eps, rate = settings[4], settings[5], settings[6], settings[7]
    if decay != 0:
        for j in range(len(x)):
            g[j] = fma(x[j], decay, g[j])
    for j in range(whole):
        square[j] = fma(square_share * g[j], g[j], square[j] * beta2)
    for j in range(whole, len(x)):
        square[j] = fma(square[j], beta2, square_share * g[j] * g[j])
    for j in range(len(x)):
        average[j] = fma(share, g[j] - average[j], average[j])
        x[j] = x[j] * kept + rate * average[j] / (np.sqrt(square[j]) / correction + eps)


@jit(error_model="numpy")
def sgd(x, g, momentum_buffer, settings, whole):
    """Take a step of SGD with the settings of its `Rule`; without momentum the buffer is empty."""
    decay, momentum, share, rate = settings[0], settings[1], settings[2], settings[3]
    if decay != 0:
        for j in range(len(x)):
            g[j] = fma(x[j], decay, g[j])
    if len(momentum_buffer):
        for j in range(whole):
            g[j] = fma(g[j], share, momentum * momentum_buffer[j])
        for j in range(whole, len(x)):
            g[j] = fma(momentum, momentum_buffer[j], g[j] * share)
        for j in range(len(x)):
            momentum_buffer[j] = g[j]
    for j in range(len(x)):
        x[j] = fma(-rate, g[j], x[j])


@jit(error_model="numpy")
def move(x, g, w, runs, levels, product, ends, costs, curve, points, by_adam, settings, average, square, *how):
    """Move the variables x along the gradient g on the weights w, which are set anew; g is cleared.

    Args:
        runs: scales, or none; where their runs end; the place of the first weight among these.
        levels: middle and half gap. product: factor, share and centre.
        ends, costs, curve, points: of `mrfquant.kernels.fused.Costs`, or empty.
        by_adam: or else by SGD. settings, average, square: of the optimizer.
        how: the arguments of `mean` between the variables and t, `start` and `stop`.
    """
    kind, power, spacing, neighbours, first_table, second_table, start, stop = how
    run_scales, run_ends, place = runs
    middle, half, scaled = levels[0], levels[1], len(run_scales) > 0
    plain, run = middle == 0 and half == 1 and not scaled, np.searchsorted(run_ends, place + start, side="right")
    t, part, scales = np.empty(TILE, f32), 0, np.empty(TILE, f32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        n, x_tile, slope, weights = last - first, x[first:last], g[first:last], w[first:last]
        whole = max(0, min(last, len(x) // LANES * LANES) - first)
        if scaled:
            run = write_runs(run_scales, run_ends, place + first, run, scales[:n])
            for j in range(n):
                slope[j] *= scales[j]
        if half != 1:
            for j in range(n):
                slope[j] *= half
        if not plain:
            for j in range(n):
                t[j] = weights[j] / scales[j] if scaled else weights[j]
            for j in range(n):
                t[j] = max(-ONE, min(ONE, (t[j] - middle) / half))
        low = 0
        while len(ends) and low < n:
            while ends[part] <= first + low:
                part += 1
            high = min(n, ends[part] - first)
            if points.shape[1]:
                add_line_costs(x_tile[low:high], slope[low:high], costs[part], points[0], points[1], curve[0])
            else:
                add_costs(x_tile[low:high], slope[low:high], costs[part, 0], costs[part, 1], curve[0], curve[1])
            low = high
        mean_product(weights if plain else t[:n], slope, product[0], product[1], product[2], 0, n)
        if by_adam:
            adam(x_tile, slope, average[first:last], square[first:last], settings, whole)
        else:
            sgd(x_tile, slope, average[first:last], settings, whole)
        mean(x, kind, power, spacing, neighbours, first_table, second_table, w, first, last)
        if not plain:
            for j in range(n):
                weights[j] = fma(weights[j], half, middle)
        if scaled:
            for j in range(n):
                weights[j] *= scales[j]
        slope[:] = ZERO


def step(
    x: Tensor,
    g: Tensor,
    w: Tensor,
    runs: tuple[Tensor, Tensor, int] | None,
    levels: tuple[float, float],
    product: tuple[float, float, float],
    rule: Rule,
    mean_arguments: tuple[Any, ...],
    costs: Costs = NO_COSTS,
) -> None:
    """Move x along the product with g (`mean_vjp`) by the rule of an optimizer, write w, and clear g: (m,) each.

    Args:
        x: auxiliary variables.
        g: the gradient with respect to w.
        w: the weights before and after.
        runs: scales, the ends of their runs, and the place of the first weight among these; None for 1.
        levels: their middle, and half the gap between the lowest and the highest.
        product: f, a and c of `mean_vjp`.
        rule: of the optimizer.
        mean_arguments: of the kernel for the map from x to t, of which w is made.
        costs: of labels, whose gradient on t is added to that of w.
    """
    factor, share, centre = product
    numbers = np.array(levels, np.float32), np.array((factor, factor * share, centre), np.float32)
    by_adam = rule.kind == "adam"
    settings = np.array(count_step(rule) if by_adam else rule.settings, np.float32)
    average, square = (*rule.averages, EMPTY, EMPTY)[:2]
    shared = NO_RUNS if runs is None else (runs[0].numpy(), runs[1].numpy(), runs[2])
    state = (by_adam, settings, average.numpy(), square.numpy())
    arrays = (x.numpy(), g.numpy(), w.numpy(), shared, *numbers, *costs, *state, *mean_arguments)
    if len(x) < 2 * dispatch.THREAD_SHARE:
        move(*arrays, 0, len(x))
    else:
        parallel_ranges(functools.partial(move, *arrays), len(x), dispatch.THREAD_SHARE)


def count_step(rule: Rule) -> tuple[float, ...]:
    """Count a step of Adam, and return its settings then.

    They are weight decay that is added to the gradient, the share of x that decoupled decay leaves, 1 - beta1, beta2,
    1 - beta2, the root of the second bias correction, eps, minus the step size.
    """
    added, kept, beta1, beta2, eps, rate = rule.settings
    assert rule.steps is not None
    count = rule.steps.numpy()
    count += 1
    k = float(count)
    return added, kept, 1 - beta1, beta2, 1 - beta2, math.sqrt(1 - beta2**k), eps, -rate / (1 - beta1**k)
