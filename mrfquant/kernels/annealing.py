"""Sweeps of `mrfquant.mrf.annealing`: each variable draws a label given its neighbours, at a temperature.

`local` holds by place the cost of each label of each variable given the labels of the others. A variable that keeps its
label costs no more than its own labels; one that takes another changes the costs of its neighbours.
"""

import numpy as np

from mrfquant.kernels.layout import draw, jit
from mrfquant.kernels.tree_moves import given

RESOLUTION = 1 << 53  # different random numbers
IMPOSSIBLE = 40.0  # a rise of the energy over the temperature, at which a label is not drawn


@jit()
def uniform(state):
    """Draw a number between 0 and 1; state: (1,) uint64, not 0."""
    return (draw(state, RESOLUTION) + 0.5) / RESOLUTION


@jit()
def local_costs(field, unary, labels, local, begin, end):
    """Compute `local` of variables begin .. end."""
    for v in range(begin, end):
        c, first = field.cards[v], field.first[v]
        local[first : first + c] = unary[first : first + c]
        for at in range(field.near[v], field.near[v + 1]):
            s = field.slots[at]
            base, step = given(field, s, labels), field.stride[s]
            for x in range(c):
                local[first + x] += field.values[base + step * x]


@jit()
def relabel(field, labels, local, v, new):
    """Give a variable another label."""
    old = labels[v]
    labels[v] = new
    for at in range(field.near[v], field.near[v + 1]):
        s = field.slots[at]
        f, back = field.factor[s], field.stride[s] * (new - old)
        begin = field.begin[f]
        if field.begin[f + 1] - begin == 2:  # the same as below, in half the time
            t = 2 * begin + 1 - s
            w, step, base = field.scope[t], field.stride[t], field.table[f] + field.stride[s] * new
            first = field.first[w]
            for x in range(field.cards[w]):
                local[first + x] += field.values[base + step * x] - field.values[base - back + step * x]
            continue
        for t in range(begin, field.begin[f + 1]):
            if t != s:
                w, step = field.scope[t], field.stride[t]
                base, first = given(field, t, labels), field.first[w]
                for x in range(field.cards[w]):
                    local[first + x] += field.values[base + step * x] - field.values[base - back + step * x]


@jit()
def heat_bath(local, first, c, temperature, state):
    """Draw a label by p(x) = exp(-cost(x) / temperature) / Z."""
    least, total = local[first], 0.0
    for x in range(1, c):
        least = min(least, local[first + x])
    for x in range(c):
        rise = (local[first + x] - least) / temperature
        total += np.exp(-rise) if rise < IMPOSSIBLE else 0.0
    left, drawn = total * uniform(state), 0
    for x in range(c):
        rise = (local[first + x] - least) / temperature
        if rise < IMPOSSIBLE:
            left -= np.exp(-rise)
            drawn = x
            if left <= 0:
                break
    return drawn


@jit()
def sweep(field, labels, local, begin, end, times, temperature, state):
    """Draw labels for variables begin .. end so many times; return the change of the energy.

    Two labels are drawn by Metropolis' rule; at temperature 0 the cheapest is taken.
    """
    change = 0.0
    for _ in range(times):
        for v in range(begin, end):
            c, first, old = field.cards[v], field.first[v], labels[v]
            new = old
            if c == 2 and temperature > 0:
                rise = (local[first + 1 - old] - local[first + old]) / temperature
                if rise <= 0 or (rise < IMPOSSIBLE and uniform(state) < np.exp(-rise)):
                    new = 1 - old
            elif temperature > 0:
                new = heat_bath(local, first, c, temperature, state)
            else:
                for x in range(c):
                    if local[first + x] < local[first + new]:
                        new = x
            if new != old:
                change += local[first + new] - local[first + old]
                relabel(field, labels, local, v, new)
    return change
