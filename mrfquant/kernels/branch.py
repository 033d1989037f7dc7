"""Depth-first branch and bound on a reparametrised field; see `mrfquant.mrf.branch_and_bound`.

A visit to a variable changes its own entries of `unary` and `lam` only, so that a copy of these, made at the first
visit on each level of the search tree, is all that going back needs.
"""

from __future__ import annotations

import numpy as np

from mrfquant.kernels.dual import belief, collect, forbid, smallest
from mrfquant.kernels.layout import energy, jit

WORTH = 0.01  # the share of the gap by which a variable's visit has to raise the bound for its neighbours to be visited


@jit()
def visit(field, unary, lam, v, free, limit, total, value, out):
    """Take over what a variable's factors can give, drop labels that cannot be below the limit, share the rest.

    Args:
        total: (1,) the bound, raised by the variable's least cost.
        value: (cards,) becomes the variable's costs above the least.

    Returns:
        How many labels remain.
    """
    begin, end = field.near[v], field.near[v + 1]
    first, c = field.first[v], field.cards[v]
    for at in range(begin, end):
        collect(field, unary, lam, field.slots[at], free, out)
    best = belief(field, unary, lam, v, value)
    if best == np.inf or total[0] + best >= limit:
        return 0
    total[0] += best
    left = 0
    for x in range(c):
        if value[x] < np.inf:
            unary[first + x] -= best
            value[x] -= best
            if total[0] + value[x] >= limit:
                forbid(field, unary, lam, v, x)
                value[x] = np.inf
            else:
                left += 1
                for at in range(begin, end):
                    lam[field.start[field.slots[at]] + x] += value[x] / (end - begin)
    return left


@jit()
def work(field, v):
    """Entries that a visit to a variable looks at."""
    entries = 0
    for at in range(field.near[v], field.near[v + 1]):
        s = field.begin[field.factor[field.slots[at]]]
        entries += field.stride[s] * field.cards[field.scope[s]]
    return entries


@jit()
def wake(field, v, queue, waiting, at):
    """Put the neighbours of a variable into the queue (a ring), of which `at` says the first and the end."""
    n = len(queue)
    for i in range(field.near[v], field.near[v + 1]):
        f = field.factor[field.slots[i]]
        for t in range(field.begin[f], field.begin[f + 1]):
            w = field.scope[t]
            if w != v and not waiting[w]:
                waiting[w] = True
                queue[at[1] % n] = w
                at[1] += 1


@jit()
def save(field, unary, lam, v, kept, used):
    """Copy a variable's entries behind those that are kept; gives the new end."""
    c, first = field.cards[v], field.first[v]
    kept[used : used + c] = unary[first : first + c]
    for i in range(field.near[v], field.near[v + 1]):
        used += c
        start = field.start[field.slots[i]]
        kept[used : used + c] = lam[start : start + c]
    return used + c


@jit()
def restore(field, unary, lam, v, kept, used):
    """The inverse of `save`."""
    c, first = field.cards[v], field.first[v]
    used -= c * (1 + field.near[v + 1] - field.near[v])
    unary[first : first + c] = kept[used : used + c]
    at = used
    for i in range(field.near[v], field.near[v + 1]):
        at += c
        start = field.start[field.slots[i]]
        lam[start : start + c] = kept[at : at + c]
    return used


@jit()
def possible(field, unary, v):
    """The number of labels that a variable has left."""
    count = 0
    for x in range(field.first[v], field.first[v + 1]):
        count += unary[x] < np.inf
    return count


@jit()
def propagate(field, unary):
    """Make labels impossible, inf in `unary`, that a factor forbids together with all that is possible elsewhere.

    A variable is visited again only when a neighbour has lost a label, so a long chain of consequences is no problem.
    """
    n = len(field.cards)
    out, free, lam = np.empty(field.cards.max()), np.full(n, -1), np.zeros(field.start[-1])
    queue, waiting, at = np.arange(n), np.ones(n, np.bool_), np.array([0, n])
    for v in range(n):
        for x in range(field.cards[v]):
            if unary[field.first[v] + x] == np.inf:
                forbid(field, unary, lam, v, x)
    while at[0] < at[1]:
        v = queue[at[0] % n]
        at[0] += 1
        waiting[v] = False
        before = possible(field, unary, v)
        for i in range(field.near[v], field.near[v + 1]):
            smallest(field, lam, field.slots[i], free, out)
            for x in range(field.cards[v]):
                if out[x] == np.inf:
                    forbid(field, unary, lam, v, x)
        if possible(field, unary, v) < before:
            wake(field, v, queue, waiting, at)


@jit()
def branching(field, weight, left, culprit):
    """The variable of the last dead end, else the one with the most dead ends per label; -1 if all are decided."""
    if culprit >= 0 and left[culprit] > 1:
        return culprit
    pick = -1
    for v in range(len(left)):
        if left[v] > 1 and (pick < 0 or weight[v] * left[pick] > weight[pick] * left[v]):
            pick = v
    return pick


@jit()
def cheapest(field, unary, liked, v):
    """The possible label of a variable that is liked best."""
    best = -1
    for x in range(field.cards[v]):
        p = field.first[v] + x
        if unary[p] < np.inf and (best < 0 or liked[p] < liked[field.first[v] + best]):
            best = x
    return best


@jit()
def search(field, costs, unary, lam, total, limit, margin, budget, weight, liked, labels):
    """Search until nothing is left, or for a budget of table entries looked at.

    Args:
        costs: by place, the field's own unary costs.
        unary: by place, with `lam` the reparametrised field, and `total` (1,) its bound; those of the root remain.
        limit: only labellings below it are of interest.
        margin: a labelling has to be better by this, against rounding.
        weight: (n,) how often a variable led to a dead end, kept up to date.
        liked: by place, costs by which labels are tried, kept up to date.
        labels: (n,) becomes the best labelling if one is found.

    Returns:
        Whether the search is complete, the least energy found or the limit, and the entries looked at.
    """
    n = len(field.cards)
    out, value = np.empty(field.cards.max()), np.empty(field.cards.max())
    free, present, left = np.full(n, -1), np.zeros(n, np.int64), np.zeros(n, np.int64)
    queue, waiting, at = np.arange(n), np.ones(n, np.bool_), np.array([0, n])
    kept, used = np.empty(1 << 16), 0  # copies of entries, one after the other
    saved, copies = np.empty(1 << 10, np.int64), 0  # and whose they are
    stack, totals = np.empty((n + 1, 3), np.int64), np.empty(n + 1)  # decisions: variable, label, copies before
    depth, level, levels, done, culprit = 0, 0, 0, 0, -1
    stamp = np.full(n, -1)  # the level at which a variable was copied last
    for v in range(n):
        left[v] = possible(field, unary, v)
    chosen, label, keep = -1, -1, True  # a variable that is about to keep one label only, or to lose it
    while True:
        failed = False
        while at[0] < at[1]:  # visit variables until the bound rests
            v = queue[at[0] % n]
            at[0] += 1
            waiting[v] = False
            if failed:
                continue
            if depth > 0 and stamp[v] != level:
                while used + field.cards[v] * (1 + field.near[v + 1] - field.near[v]) > len(kept):
                    kept = np.concatenate((kept, np.empty(len(kept))))
                if copies == len(saved):
                    saved = np.concatenate((saved, np.empty(len(saved), np.int64)))
                used = save(field, unary, lam, v, kept, used)
                saved[copies] = v
                copies += 1
                stamp[v] = level
            if v == chosen:
                for x in range(field.cards[v]):
                    if unary[field.first[v] + x] < np.inf and (x == label) != keep:
                        forbid(field, unary, lam, v, x)
                chosen = -1
            many, before = left[v], total[0]
            left[v] = visit(field, unary, lam, v, free, limit - margin, total, value, out)
            done += work(field, v)
            if left[v] == 0:
                failed = True
                weight[v] += 1
                culprit = v
                continue
            for x in range(field.cards[v]):
                liked[field.first[v] + x] = value[x]
            if left[v] < many or total[0] - before > WORTH * (limit - before):
                wake(field, v, queue, waiting, at)
        pick = -1 if failed else branching(field, weight, left, culprit)
        if not failed and pick < 0:
            for v in range(n):
                present[v] = cheapest(field, unary, liked, v)
            found = energy(field, costs, present)
            if found < limit:
                limit = found
                labels[:] = present
            failed = True
        if failed and depth == 0:
            return True, limit, done
        stop = done > budget
        if failed or (stop and depth > 0):  # back to before the last decision, or all of them
            depth = 0 if stop else depth - 1
            while copies > stack[depth, 2]:
                copies -= 1
                v = saved[copies]
                used = restore(field, unary, lam, v, kept, used)
                left[v] = possible(field, unary, v)
            total[0] = totals[depth]
            chosen, label, keep = stack[depth, 0], stack[depth, 1], False
        if stop:
            return False, limit, done
        if not failed:
            chosen, label, keep = pick, cheapest(field, unary, liked, pick), True
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = chosen, label, copies
            totals[depth] = total[0]
            depth += 1
        levels += 1
        level = levels
        waiting[chosen] = True
        queue[0] = chosen
        at[0], at[1] = 0, 1
