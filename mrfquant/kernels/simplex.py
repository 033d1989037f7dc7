"""The chains of operations of projections, a few variables at a time, for `mrfquant.kernels.dispatch`; needs numba."""

from __future__ import annotations

import math

import numpy as np

from mrfquant.kernels.fused import LINE, PAIR, WIDE_LINE
from mrfquant.kernels.jit import jit

TILE = 1024  # variables that are done at once: their planes stay in the nearest cache
# Divides as NumPy does, and may contract a product and a sum into one operation; both let it use vector instructions.
OPTIONS = {"error_model": "numpy", "fastmath": {"contract"}}

f32, i32 = np.float32, np.int32
ZERO, ONE, LOWEST, BIAS, MANTISSA = f32(0), f32(1), f32(-127), i32(127), i32(23)
MINUS_INFINITY = f32(-np.inf)
ROUNDING = f32(1.5 * 2**23)  # a float that is added to it has its integer part in the lowest bits of the sum
C1, C2, C3, C4, C5, C6 = (f32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))


@jit(**OPTIONS)
def power_of_two(x):
    """Return 2^x for x <= 0; below 2^-126 it is 0."""
    x = LOWEST if x < LOWEST else x  # in this order, what is not a number remains
    shifted = f32(x + ROUNDING)
    x = x - (shifted - ROUNDING)  # from -1/2 to 1/2
    exponent = i32((shifted.view(i32) + BIAS) << MANTISSA)
    return (ONE + x * (C1 + x * (C2 + x * (C3 + x * (C4 + x * (C5 + x * C6)))))) * exponent.view(f32)


@jit(**OPTIONS)
def largest(x, top, other):
    """Return two places, with the maximum over the planes of x (d, n) in the first."""
    n = x.shape[1]
    top[:n] = x[0]
    for k in range(1, len(x)):
        plane = x[k]
        for j in range(n):  # into another place: in its own it would be a store under a condition, which is slow
            other[j] = plane[j] if plane[j] > top[j] else top[j]
        top, other = other, top
    return top, other


@jit(**OPTIONS)
def softmax(aux, scale, q, out, w, start, stop):
    """Write columns `start` to `stop` of u = 2^(scale (ũ - max ũ)), normalised, and of w = q u."""
    d = len(aux)
    top, total = np.empty(TILE, f32), np.empty(TILE, f32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        n, weights = last - first, w[first:last]
        top, total = largest(aux[:, first:last], top, total)
        total[:] = 0
        for k in range(d):
            x, y = aux[k, first:last], out[k, first:last]
            for j in range(n):
                # The maximum goes before beta is multiplied in: beta times a large ũ may be infinite.
                y[j] = power_of_two((x[j] - top[j]) * scale)
                total[j] += y[j]
        for j in range(n):
            total[j] = ONE / total[j]
            weights[j] = 0
        for k in range(d):
            y, level = out[k, first:last], q[k]
            for j in range(n):
                y[j] *= total[j]
                weights[j] += y[j] * level


@jit(**OPTIONS)
def tanh(aux, scale, out, start, stop):
    """Write t = (1 - h) / (1 + h) for h = 2^(-scale |ã|), with the sign of ã."""
    x, y = aux[start:stop], out[start:stop]
    for j in range(len(x)):
        h = power_of_two(-abs(x[j]) * scale)
        t = (ONE - h) / (ONE + h)
        y[j] = -t if x[j] < 0 else t


@jit(**OPTIONS)
def line(aux, scale, p, shift, out, start, stop):
    """Write t = u p / p_d for u = 2^(scale (a p + shift)), normalised, for any levels p."""
    top, total, mean = np.empty(TILE, f32), np.empty(TILE, f32), np.empty(TILE, f32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        n, x, y = last - first, aux[first:last], out[first:last]
        for j in range(n):
            total[j] = x[j] * p[0] + shift[0]
        for k in range(1, len(p)):
            for j in range(n):
                value = x[j] * p[k] + shift[k]
                top[j] = value if value > total[j] else total[j]
            top, total = total, top
        top, total = total, top
        total[:] = 0
        mean[:] = 0
        for k in range(len(p)):
            for j in range(n):
                u = power_of_two((x[j] * p[k] + shift[k] - top[j]) * scale)
                total[j] += u
                mean[j] += u * p[k]
        for j in range(n):
            y[j] = mean[j] / (total[j] * p[-1])


@jit(**OPTIONS)
def wide_line(aux, scale, weights, means, out, start, stop):
    """Write t for levels on a grid while all of them count: polynomials in z = 2^(-scale |a|), four powers at a time.

    Args:
        weights: of the powers of z, the highest first: u of the points of the grid at a = 0, the lowest first.
        means: these times the levels.
    """
    z, total, mean = np.empty(TILE, f32), np.empty(TILE, f32), np.empty(TILE, f32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        n, x, y = last - first, aux[first:last], out[first:last]
        for j in range(n):
            z[j] = power_of_two(-abs(x[j]) * scale)
        total[:] = 0
        mean[:] = 0
        for k in range(0, len(weights), 4):
            a, b, c, d = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
            e, f, g, h = means[k], means[k + 1], means[k + 2], means[k + 3]
            for j in range(n):
                total[j] = (((total[j] * z[j] + a) * z[j] + b) * z[j] + c) * z[j] + d
                mean[j] = (((mean[j] * z[j] + e) * z[j] + f) * z[j] + g) * z[j] + h
        for j in range(n):
            t = mean[j] / total[j]
            y[j] = -t if x[j] < 0 else t


@jit(**OPTIONS)
def narrow_line(aux, scale, spacing, last_level, neighbours, out, start, stop):
    """Write t for even levels of which only the nearest and its neighbours on either side count."""
    total, mean, near = np.empty(TILE, f32), np.empty(TILE, f32), np.empty(TILE, f32)
    lowest, half = -last_level, f32(0.5)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        n, x, y = last - first, aux[first:last], out[first:last]
        for j in range(n):
            step = np.floor((x[j] / spacing + last_level) * half + half)
            level = step + step - last_level
            level = lowest if level < lowest else level
            near[j] = last_level if level > last_level else level
            total[j] = ONE
            mean[j] = ZERO
        for k in range(1, neighbours + 1):
            away = f32(k)
            for j in range(n):
                up = power_of_two(min((x[j] - spacing * (near[j] + away)) * away * scale, ZERO))
                down = power_of_two(min((spacing * (near[j] - away) - x[j]) * away * scale, ZERO))
                up = ZERO if near[j] + away + away > last_level else up
                down = ZERO if near[j] - away - away < lowest else down
                total[j] += up + down
                mean[j] += (up - down) * (away + away)
        for j in range(n):
            y[j] = (near[j] + mean[j] / total[j]) / last_level


@jit(**OPTIONS)
def mean(aux, kind, scale, spacing, neighbours, first, second, out, start, stop):
    """Write t by the kernel of a kind; see `mrfquant.kernels.fused.Mean` for the others."""
    if kind == PAIR:
        tanh(aux, scale, out, start, stop)
    elif kind == LINE:
        line(aux, scale, first, second, out, start, stop)
    elif kind == WIDE_LINE:
        wide_line(aux, scale, first, second, out, start, stop)
    else:
        narrow_line(aux, scale, spacing, first[0], neighbours, out, start, stop)


@jit(**OPTIONS)
def mean_product(t, delta, factor, share, centre, start, stop):
    """Multiply δ by factor - share (t - centre)²."""
    t, delta = t[start:stop], delta[start:stop]
    for j in range(len(t)):
        off = t[j] - centre
        delta[j] *= factor - share * off * off


@jit(**OPTIONS)
def add_costs(aux, delta, slope, bend, scale, soft):
    """Add slope + bend sinh(x) / (cosh(x) + soft / 2) to δ; see `mrfquant.kernels.fused.Costs`."""
    if bend == 0:
        for j in range(len(aux)):
            delta[j] += slope
    else:
        for j in range(len(aux)):
            h = power_of_two(-abs(aux[j]) * scale)
            share = (ONE - h * h) / (ONE + h * h + soft * h)
            delta[j] += slope + (-bend if aux[j] < 0 else bend) * share


@jit(**OPTIONS)
def add_line_costs(aux, delta, costs, p, shift, scale):
    """Add p_d Cov(p, c) / Var(p) under u = 2^(scale (a p + shift)), normalised, to δ; a tile at most.

    Labels count from the likeliest one, and weigh in units of the second: its u may be too small for a float.
    """
    n, d, highest = len(aux), len(p), p[-1]
    top, second, near = np.empty(n, f32), np.empty(n, f32), np.empty(n, f32)
    cost, other = np.empty(n, f32), np.empty(n, f32)
    top[:] = MINUS_INFINITY
    second[:] = MINUS_INFINITY
    # Few arrays in a loop, and into other places: otherwise it is not compiled to vector instructions.
    for k in range(d):
        level, of_level, of_label = p[k], shift[k], costs[k]
        for j in range(n):
            value = aux[j] * level + of_level
            other[j] = value if value > top[j] else top[j]
        top, other = other, top
    for k in range(d):
        level, of_level, of_label = p[k], shift[k], costs[k]
        for j in range(n):
            other[j] = level if aux[j] * level + of_level == top[j] else near[j]
        near, other = other, near
    for k in range(d):
        level, of_level, of_label = p[k], shift[k], costs[k]
        for j in range(n):
            other[j] = of_label if near[j] == level else cost[j]
        cost, other = other, cost
    for k in range(d):
        level, of_level, of_label = p[k], shift[k], costs[k]
        for j in range(n):
            value = MINUS_INFINITY if near[j] == level else aux[j] * level + of_level
            other[j] = value if value > second[j] else second[j]
        second, other = other, second
    total, up, uc = np.zeros(n, f32), np.zeros(n, f32), np.zeros(n, f32)
    upp, upc = np.zeros(n, f32), np.zeros(n, f32)
    for k in range(d):
        level, of_level, of_label = p[k], shift[k], costs[k]
        for j in range(n):
            other[j] = power_of_two(min((aux[j] * level + of_level - second[j]) * scale, ZERO))
            total[j] += other[j]
        for j in range(n):
            uc[j] += other[j] * (of_label - cost[j])
        for j in range(n):
            other[j] *= level - near[j]
            up[j] += other[j]
        for j in range(n):
            upp[j] += other[j] * (level - near[j])
        for j in range(n):
            upc[j] += other[j] * (of_label - cost[j])
    for j in range(n):
        other[j] = power_of_two((second[j] - top[j]) * scale)
        other[j] = other[j] / (ONE + other[j] * (total[j] - ONE))  # the likeliest one was counted, too
    for j in range(n):
        upp[j] -= other[j] * up[j] * up[j]
        upc[j] -= other[j] * up[j] * uc[j]
    for j in range(n):
        delta[j] += highest * upc[j] / upp[j]


@jit(**OPTIONS)
def weights_product(u, q, w, g, beta, exact, start, stop):
    """Write beta (diag(u) - u uᵀ) q gᵀ = u (q - w) beta g to u, or for I in the place of diag(u), (q - u w) beta g."""
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        w_tile, g_tile = w[first:last], g[first:last]
        for k in range(len(q)):
            y, level = u[k, first:last], q[k, 0]
            if exact:
                for j in range(last - first):
                    y[j] *= (level - w_tile[j]) * (g_tile[j] * beta)
            else:
                for j in range(last - first):
                    y[j] = (level - y[j] * w_tile[j]) * (g_tile[j] * beta)


@jit(**OPTIONS)
def unary_product(u, q, g, ends, costs, beta, exact, start, stop):
    """Write the same for the gradient q gᵀ + c to u, with costs c of the labels for each part, less their mean."""
    expected, part = np.empty(TILE, f32), 0
    first = start
    while first < stop:
        while ends[part] <= first:
            part += 1
        last = min(first + TILE, stop, ends[part])
        n, g_tile = last - first, g[first:last]
        expected[:n] = 0
        for k in range(len(q)):
            y, level, cost = u[k, first:last], q[k, 0], costs[part, k]
            for j in range(n):
                expected[j] += y[j] * (level * g_tile[j] + cost)
        for k in range(len(q)):
            y, level, cost = u[k, first:last], q[k, 0], costs[part, k]
            if exact:
                for j in range(n):
                    y[j] *= (level * g_tile[j] + cost - expected[j]) * beta
            else:
                for j in range(n):
                    y[j] = (level * g_tile[j] + cost - y[j] * expected[j]) * beta
        first = last


@jit(**OPTIONS)
def sparsemax(aux, beta, out, start, stop):
    """Write columns `start` to `stop` of u = max(z - threshold, 0), z = beta (ũ - max ũ); see `Sparsemax.planes`."""
    d = len(aux)
    z = np.empty((d, TILE), f32)
    threshold, other, total, count = np.empty(TILE, f32), np.empty(TILE, f32), np.empty(TILE, f32), np.empty(TILE, f32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        n = last - first
        threshold, other = largest(aux[:, first:last], threshold, other)
        for k in range(d):
            x, y = aux[k, first:last], z[k]
            for j in range(n):
                y[j] = (x[j] - threshold[j]) * beta
        threshold[:] = -np.inf
        for i in range(d):  # the largest of (sum of those that are at least z_i - 1) / their number: d² operations
            low = z[i]
            total[:] = 0
            count[:] = 0
            for k in range(d):
                y = z[k]
                for j in range(n):
                    total[j] += y[j] if y[j] >= low[j] else ZERO
                    count[j] += ONE if y[j] >= low[j] else ZERO
            for j in range(n):
                total[j] = (total[j] - ONE) / count[j]
                other[j] = total[j] if total[j] > threshold[j] else threshold[j]
            threshold, other = other, threshold
        for k in range(d):
            x, y = z[k], out[k, first:last]
            for j in range(n):
                share = x[j] - threshold[j]
                y[j] = ZERO if share < 0 else share


@jit(**OPTIONS)
def sparsemax_product(u, g, beta, start, stop):
    """Write beta (g - mean of g where u > 0) where u > 0, 0 elsewhere, to g."""
    total, count = np.empty(TILE, f32), np.empty(TILE, f32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        total[:] = 0
        count[:] = 0
        for k in range(len(u)):
            x, y = u[k, first:last], g[k, first:last]
            for j in range(last - first):
                total[j] += y[j] if x[j] > 0 else ZERO
                count[j] += ONE if x[j] > 0 else ZERO
        for j in range(last - first):
            total[j] /= count[j]
        for k in range(len(u)):
            x, y = u[k, first:last], g[k, first:last]
            for j in range(last - first):
                y[j] = (y[j] - total[j]) * beta if x[j] > 0 else ZERO
