"""Depth-first branch and bound on a reparametrised field; see `mrfquant.mrf.dual`.

A visit to a variable changes only its own entries of `unary` and `lam`, so backtracking needs only a copy of these,
made at the first visit on each level of the search tree.
"""

import numpy as np

from mrfquant.kernels.dual import belief, collect, forbid, smallest
from mrfquant.kernels.layout import energy, jit

MIN_BOUND_GAIN = 0.01  # neighbours are visited after a visit that raises the bound by this fraction of the gap


@jit()
def visit(field, unary, lam, v, free, limit, total, value, out):
    """Tighten the bound at a variable: take over what its factors can give, drop labels, share the rest.

    Labels go that cannot be below the limit; return the number that is left. Raises total (1,), the bound; value
    (cards,) becomes the costs above the least.
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
    """Return the number of entries that a visit to a variable reads."""
    entries = 0
    for at in range(field.near[v], field.near[v + 1]):
        s = field.begin[field.factor[field.slots[at]]]
        entries += field.stride[s] * field.cards[field.scope[s]]
    return entries


@jit()
def wake(field, v, queue, waiting, at):
    """Put the neighbours of a variable into the queue, a ring with its first entry and its end in `at`."""
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
    """Append a variable's entries to those kept; return the new end."""
    c, first = field.cards[v], field.first[v]
    kept[used : used + c] = unary[first : first + c]
    for i in range(field.near[v], field.near[v + 1]):
        used += c
        start = field.start[field.slots[i]]
        kept[used : used + c] = lam[start : start + c]
    return used + c


@jit()
def restore(field, unary, lam, v, kept, used):
    """Undo `save`; return the new end."""
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
    """Return the number of labels that a variable has left."""
    count = 0
    for x in range(field.first[v], field.first[v + 1]):
        count += unary[x] < np.inf
    return count


@jit()
def propagate(field, unary):
    """Set labels to inf in `unary` that some factor forbids with all possible labels of its other variables.

    Ends when no label changes. A variable is visited again only when a neighbour has lost a label.
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
    """Return the variable of the last dead end, else that of the most dead ends per label; -1 if all are decided."""
    if culprit >= 0 and left[culprit] > 1:
        return culprit
    pick = -1
    for v in range(len(left)):
        if left[v] > 1 and (pick < 0 or weight[v] * left[pick] > weight[pick] * left[v]):
            pick = v
    return pick


@jit()
def cheapest(field, unary, liked, v):
    """Return the possible label of a variable with the least `liked`."""
    best = -1
    for x in range(field.cards[v]):
        p = field.first[v] + x
        if unary[p] < np.inf and (best < 0 or liked[p] < liked[field.first[v] + best]):
            best = x
    return best


@jit()
def search(field, costs, unary, lam, total, limit, margin, budget, weight, liked, labels):
    """Search until nothing is left, or until the budget of table entries is used.

    Return whether the search is complete, the least energy found or the limit, and the number of entries read.

    Args:
        costs: by place, the field's own unary costs.
        unary: by place, with `lam` the reparametrised field and with `total` (1,) its bound; become those of the root.
        limit: labellings have to be below it, by a margin against floating-point errors.
        weight: (n,) how often a variable led to a dead end, updated.
        liked: by place, costs by which labels are tried, updated.
        labels: (n,) becomes the best labelling if one is found.
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
            if left[v] < many or total[0] - before > MIN_BOUND_GAIN * (limit - before):
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
