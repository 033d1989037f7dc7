"""Moves of `mrfquant.mrf.local_search`: set a random tree of variables to its optimum given all others.

A variable joins the tree if all factors that it shares with the tree lead to the same variable, its parent. So given
the labels outside, the tree's variables interact only in pairs, and two passes along it find the best labels.
"""

import numpy as np

from mrfquant.kernels.layout import draw, energy, jit


@jit()
def contact(field, v, inside):
    """Return the variable of the tree that v shares factors with: -1 for none, -2 for several."""
    found = -1
    for at in range(field.near[v], field.near[v + 1]):
        f = field.factor[field.slots[at]]
        for t in range(field.begin[f], field.begin[f + 1]):
            w = field.scope[t]
            if inside[w] and w != v and w != found:
                if found >= 0:
                    return -2
                found = w
    return found


@jit()
def grow(field, root, size, state, inside, seen, edge, order, parent):
    """Grow a tree from a variable into `order` and `parent`; return its size.

    inside (n,) and seen (n,) are all False, `inside` becomes the members; edge (n,) is room for candidates.
    """
    count, waiting = 0, 1
    edge[0] = root
    seen[root] = True
    while waiting and count < size:
        pick = draw(state, waiting)
        waiting -= 1
        v, edge[pick] = edge[pick], edge[waiting]
        up = contact(field, v, inside)
        if up == -2:
            continue
        inside[v] = True
        order[count], parent[count] = v, up
        count += 1
        for at in range(field.near[v], field.near[v + 1]):
            f = field.factor[field.slots[at]]
            for t in range(field.begin[f], field.begin[f + 1]):
                w = field.scope[t]
                if not seen[w]:
                    seen[w] = True
                    edge[waiting] = w
                    waiting += 1
    return count


@jit()
def given(field, s, labels):
    """Return the place in `values` of the factor of slot s for label 0 of its variable and the others' labels."""
    f = field.factor[s]
    at = field.table[f]
    for t in range(field.begin[f], field.begin[f + 1]):
        if t != s:
            at += field.stride[t] * labels[field.scope[t]]
    return at


@jit()
def pass_up(field, labels, inside, v, up, total, pair, choice):
    """Add the costs of a member's factors, given the labels outside; pass its best costs up to its parent.

    `total` has costs by place; choice (n, labels) becomes v's best label for each of the parent's; `pair` is room for a
    table.
    """
    c, first = field.cards[v], field.first[v]
    high = field.cards[up] if up >= 0 else 0
    for x in range(c):
        pair[x, :high] = 0
    for at in range(field.near[v], field.near[v + 1]):
        s = field.slots[at]
        f = field.factor[s]
        other = -1
        for t in range(field.begin[f], field.begin[f + 1]):
            if t != s and inside[field.scope[t]]:
                other = t
        if other < 0:
            base = given(field, s, labels)
            for x in range(c):
                total[first + x] += field.values[base + field.stride[s] * x]
        elif field.scope[other] == up:
            base = given(field, s, labels) - field.stride[other] * labels[up]
            for x in range(c):
                for y in range(high):
                    pair[x, y] += field.values[base + field.stride[s] * x + field.stride[other] * y]
    for y in range(high):
        best, label = np.inf, 0
        for x in range(c):
            value = total[first + x] + pair[x, y]
            if value < best:
                best, label = value, x
        total[field.first[up] + y] += best
        choice[v, y] = label


@jit()
def walk(field, unary, labels, state, moves, size, heat, best):
    """Move trees from random roots, with noise on the costs that falls to 0; return the energy of `best`.

    Args:
        unary: by place, costs, as those in `field` without inf.
        labels: (n,) changed in place.
        state: (1,) uint64 of the random numbers.
        size: the most variables of a tree.
        heat: scale of the noise in the first move.
        best: (n,) the best labelling; changed if a better one is found.
    """
    n, widest = len(field.cards), field.cards.max()
    inside, seen = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    edge, order, parent = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    total, pair, choice = np.empty(len(unary)), np.empty((widest, widest)), np.empty((n, widest), np.int32)
    least = energy(field, unary, best)
    for move in range(moves):
        inside[:] = False
        seen[:] = False
        count = grow(field, draw(state, n), size, state, inside, seen, edge, order, parent)
        scale = heat * max(0.0, 1 - 1.25 * move / moves)  # the last fifth without noise
        for i in range(count):
            for x in range(field.first[order[i]], field.first[order[i] + 1]):
                total[x] = unary[x]
                if scale:  # Gumbel's: the best label of a variable alone is then a sample at temperature `scale`
                    total[x] += scale * np.log(-np.log((draw(state, 1 << 52) + 0.5) / (1 << 52)))
        for i in range(count - 1, -1, -1):
            pass_up(field, labels, inside, order[i], parent[i], total, pair, choice)
        for i in range(count):
            v = order[i]
            if parent[i] >= 0:
                labels[v] = choice[v, labels[parent[i]]]
            else:
                labels[v] = total[field.first[v] : field.first[v + 1]].argmin()
        found = energy(field, unary, labels)
        if found < least:
            least = found
            best[:] = labels
    return least
