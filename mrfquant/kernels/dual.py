"""Sweeps that raise the dual bound of a field; see `mrfquant.mrf.dual` for the formulas and names.

`lam` holds minus the costs moved from each slot's factor to its variable; inf at labels that are impossible. So a
factor's reparametrised cost is its table plus `lam` of its slots, and a variable's is `unary` minus `lam`.
"""

import numpy as np

from mrfquant.kernels.layout import jit


@jit(fastmath={"nnan", "nsz"})  # so that minima use vector instructions; inf remains what it is
def smallest(field, lam, s, fixed, out):
    """Write the factor's least cost for each label of slot s to out (cards,).

    The minimum is over its other variables but those with a label in fixed (n,) of at least 0, and without the slot's
    own `lam`.
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
    """Move to slot s's variable all that its factor can give; a label that it forbids becomes impossible everywhere."""
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
    """Write a variable's reparametrised costs to `out`; return the least."""
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
    """Return whether some variable of the slot's factor comes before the slot's, and whether some comes after."""
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
        order: some of the variables.
        rank: (n,) the place of each in the whole order.
        everything: collect from all factors, as the first sweep has to.
        labels: (n,) -1 for variables not visited yet; a visited one gets its best label, given those before it.
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
def least(field, lam, f, free, out):
    """Return the least reparametrised cost of a factor."""
    s, best = field.begin[f], np.inf
    smallest(field, lam, s, free, out)
    for x in range(field.cards[field.scope[s]]):
        best = min(best, out[x] + lam[field.start[s] + x])
    return best


@jit()
def bound(field, unary, lam):
    """Return the sum of the least reparametrised costs of all variables and factors: no labelling costs less."""
    out, free, total = np.empty(field.cards.max()), np.full(len(field.cards), -1), 0.0
    for v in range(len(field.cards)):
        total += belief(field, unary, lam, v, out)
    for f in range(len(field.table)):
        total += least(field, lam, f, free, out)
    return total


@jit()
def normalise(field, unary, lam):
    """Subtract the least costs of all factors and variables; return their sum, (1,)."""
    out, free, total = np.empty(field.cards.max()), np.full(len(field.cards), -1), np.zeros(1)
    for f in range(len(field.table)):
        best, s = least(field, lam, f, free, out), field.begin[f]
        for x in range(field.start[s], field.start[s + 1]):
            if lam[x] < np.inf:
                lam[x] -= best
    for v in range(len(field.cards)):
        best = belief(field, unary, lam, v, out)
        for x in range(field.first[v], field.first[v + 1]):
            unary[x] -= best
        total[0] += best
    return total
