"""Sweeps that raise the dual bound of a field; see `mrfquant.mrf.dual` for the formulas and names.

`lam` holds minus the costs that each slot's variable took over from its factor; inf at labels that are impossible.
So a factor's reparametrised cost is its table plus `lam` of its slots, and a variable's is `unary` minus `lam`.
"""

from __future__ import annotations

import numpy as np

from mrfquant.kernels.layout import jit


@jit(fastmath={"nnan", "nsz"})  # so that minima use vector instructions; inf remains what it is
def smallest(field, lam, s, fixed, out):
    """For each label of slot s the factor's least cost over its other variables, without the slot's own `lam`.

    Args:
        fixed: (n,) labels of variables that are not to be minimised over, -1 for the others.
        out: (cards,) the result.
    """
    f = field.factor[s]
    begin, end, at = field.begin[f], field.begin[f + 1], field.table[f]
    labels, step = field.cards[field.scope[s]], field.stride[s]
    values, stride, start, cards, scope = field.values, field.stride, field.start, field.cards, field.scope
    if end - begin == 2:
        other = begin + end - 1 - s
        c, jump, messages = cards[scope[other]], stride[other], start[other]
        low, high = 0, c
        if fixed[scope[other]] >= 0:
            low = fixed[scope[other]]
            high = low + 1
        given = lam[messages : messages + c]
        if jump == 1:  # along the rows of the table
            for x in range(labels):
                best, row = np.inf, values[at + step * x : at + step * x + c]
                for y in range(low, high):
                    value = row[y] + given[y]
                    best = value if value < best else best
                out[x] = best
            return
        out[:labels] = np.inf
        for y in range(low, high):
            message, row = given[y], values[at + jump * y : at + jump * y + labels]
            for x in range(labels):
                value = row[x] + message
                out[x] = value if value < out[x] else out[x]
        return
    out[:labels] = np.inf
    k = end - begin
    count = np.zeros(k, np.int64)
    high = np.empty(k, np.int64)
    for i in range(k):
        v = scope[begin + i]
        high[i] = cards[v]
        if begin + i != s and fixed[v] >= 0:
            count[i] = fixed[v]
    while True:
        value, entry = 0.0, at
        for i in range(k):
            t = begin + i
            entry += stride[t] * count[i]
            if t != s:
                value += lam[start[t] + count[i]]
        value += values[entry]
        x = count[s - begin]
        if value < out[x]:
            out[x] = value
        i = k - 1
        while i >= 0:  # the next labels, the last variable running fastest
            t = begin + i
            if t != s and fixed[scope[t]] >= 0:
                i -= 1
                continue
            count[i] += 1
            if count[i] < high[i]:
                break
            count[i] = 0
            i -= 1
        if i < 0:
            return


@jit()
def collect(field, unary, lam, s, fixed, out):
    """Move all that a factor can give to slot s's variable; a label that it forbids becomes impossible everywhere."""
    v = field.scope[s]
    smallest(field, lam, s, fixed, out)
    for x in range(field.cards[v]):
        if unary[field.first[v] + x] < np.inf:
            if out[x] == np.inf:
                forbid(field, unary, lam, v, x)
            else:
                lam[field.start[s] + x] = -out[x]


@jit()
def forbid(field, unary, lam, v, x):
    """Make a label impossible."""
    unary[field.first[v] + x] = np.inf
    for at in range(field.near[v], field.near[v + 1]):
        lam[field.start[field.slots[at]] + x] = np.inf


@jit()
def belief(field, unary, lam, v, out):
    """A variable's reparametrised costs; gives the least."""
    best = np.inf
    for x in range(field.cards[v]):
        value = unary[field.first[v] + x]
        if value < np.inf:
            for at in range(field.near[v], field.near[v + 1]):
                value -= lam[field.start[field.slots[at]] + x]
        out[x] = value
        best = min(best, value)
    return best


@jit()
def extremes(field, rank, s):
    """Whether some variable of the slot's factor comes before the slot's, and whether some comes after."""
    f, v = field.factor[s], field.scope[s]
    before, after = False, False
    for t in range(field.begin[f], field.begin[f + 1]):
        before |= rank[field.scope[t]] < rank[v]
        after |= rank[field.scope[t]] > rank[v]
    return before, after


@jit()
def sweep(field, unary, lam, order, rank, everything, labels):
    """Visit the variables in an order: collect from factors with earlier variables, share with those with later ones.

    Args:
        order: some of the variables. rank: (n,) the place of each in the whole order.
        everything: collect from all factors, as the first sweep has to.
        labels: (n,) -1 for variables that were not yet visited; each visited one gets its best label, given those
            before and the bound for those after.
    """
    widest = field.cards.max()
    out, value, given = np.empty(widest), np.empty(widest), np.empty(widest)
    free = np.full(len(field.cards), -1)
    for v in order:
        c, first = field.cards[v], field.first[v]
        given[:c] = unary[first : first + c]
        inward, outward = 0, 0
        for at in range(field.near[v], field.near[v + 1]):
            s = field.slots[at]
            before, after = extremes(field, rank, s)
            inward += before
            outward += after
            if before:
                smallest(field, lam, s, labels, out)
                given[:c] += out[:c]
            if before or everything:
                collect(field, unary, lam, s, free, out)
            if not before:
                for x in range(c):
                    if unary[first + x] < np.inf:
                        given[x] -= lam[field.start[s] + x]
        best = belief(field, unary, lam, v, value)
        label = -1
        for x in range(c):  # of the labels that are possible
            if unary[first + x] < np.inf and (label < 0 or given[x] < given[label]):
                label = x
        if label < 0 or given[label] == np.inf:
            label = value[:c].argmin()
        labels[v] = label
        share = 1 / max(inward, outward, 1)
        for at in range(field.near[v], field.near[v + 1]):
            s = field.slots[at]
            if extremes(field, rank, s)[1]:
                for x in range(c):
                    if value[x] < np.inf:
                        lam[field.start[s] + x] += share * (value[x] - best)


@jit()
def bound(field, unary, lam):
    """The sum of the least reparametrised costs of all variables and factors: no labelling costs less."""
    widest = field.cards.max()
    out = np.empty(widest)
    free = np.full(len(field.cards), -1)
    total = 0.0
    for v in range(len(field.cards)):
        total += belief(field, unary, lam, v, out)
    for f in range(len(field.table)):
        s = field.begin[f]
        smallest(field, lam, s, free, out)
        best = np.inf
        for x in range(field.cards[field.scope[s]]):
            best = min(best, out[x] + lam[field.start[s] + x])
        total += best
    return total


@jit()
def normalise(field, unary, lam):
    """Subtract the least costs of all factors and variables; gives their sum, (1,)."""
    out, total = np.empty(field.cards.max()), np.zeros(1)
    free = np.full(len(field.cards), -1)
    for f in range(len(field.table)):
        s = field.begin[f]
        v = field.scope[s]
        smallest(field, lam, s, free, out)
        best = np.inf
        for x in range(field.cards[v]):
            best = min(best, out[x] + lam[field.start[s] + x])
        for x in range(field.cards[v]):
            if lam[field.start[s] + x] < np.inf:
                lam[field.start[s] + x] -= best
    for v in range(len(field.cards)):
        best = belief(field, unary, lam, v, out)
        for x in range(field.first[v], field.first[v + 1]):
            unary[x] -= best
        total[0] += best
    return total
