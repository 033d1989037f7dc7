"""Kicks of `mrfquant.mrf.iterated_descent`: move a few variables, let the others answer, undo it if it did not pay.

`local` holds by place the cost of each label of each variable given the labels of the others, as in
`mrfquant.kernels.annealing`, so a kick costs a comparison for each neighbour of what it changes.
"""

from mrfquant.kernels.annealing import relabel
from mrfquant.kernels.layout import draw, jit


@jit()
def change_label(field, labels, local, v, new, trail, count):
    """Give a variable another label, note the old one in the trail, and return the change of the energy."""
    first, old = field.first[v], labels[v]
    trail[count, 0], trail[count, 1] = v, old
    change = local[first + new] - local[first + old]
    relabel(field, labels, local, v, new)
    return change


@jit()
def wait(field, v, waiting, queue, end):
    """Let the neighbours of a variable wait for an answer; return the new end of the queue, a ring."""
    for at in range(field.near[v], field.near[v + 1]):
        f = field.factor[field.slots[at]]
        for t in range(field.begin[f], field.begin[f + 1]):
            w = field.scope[t]
            if w != v and not waiting[w]:
                waiting[w] = True
                queue[end % len(queue)] = w
                end += 1
    return end


@jit()
def neighbour(field, v, state):
    """Draw a neighbour of a variable; itself if it has none."""
    degree = field.near[v + 1] - field.near[v]
    if degree == 0:
        return v
    s = field.slots[field.near[v] + draw(state, degree)]
    f = field.factor[s]
    return field.scope[field.begin[f] + draw(state, field.begin[f + 1] - field.begin[f])]


@jit()
def kick(field, labels, local, kicks, most, slack, state, queue, waiting, trail):
    """Kick so many times; return the change of the energy.

    Args:
        most: the most variables of a kick, one and neighbours of it.
        slack: the least gain that counts, larger than floating-point errors.
        queue, waiting: (n,) room; none is waiting.
        trail: (m, 2) room for the variables that a kick changes, and their labels before.
    """
    n, total = len(labels), 0.0
    for _ in range(kicks):
        v, count, end, change = draw(state, n), 0, 0, 0.0
        for _ in range(1 + draw(state, most)):
            if field.cards[v] > 1:
                new = (labels[v] + 1 + draw(state, field.cards[v] - 1)) % field.cards[v]
                change += change_label(field, labels, local, v, new, trail, count)
                count += 1
            v = neighbour(field, trail[draw(state, count), 0] if count else v, state)
        kicked = count
        for i in range(kicked):
            end = wait(field, trail[i, 0], waiting, queue, end)
        at = 0
        if end:  # a random one begins
            swap = draw(state, end)
            queue[0], queue[swap] = queue[swap], queue[0]
        while at < end:
            v = queue[at % n]
            at += 1
            waiting[v] = False
            first, best = field.first[v], labels[v]
            for x in range(field.cards[v]):
                if local[first + x] < local[first + best]:
                    best = x
            if count < len(trail) and local[first + best] < local[first + labels[v]] - slack:
                change += change_label(field, labels, local, v, best, trail, count)
                count += 1
                end = wait(field, v, waiting, queue, end)
        if change > 0:
            for i in range(count - 1, -1, -1):
                relabel(field, labels, local, trail[i, 0], trail[i, 1])
        else:
            total += change
    return total
