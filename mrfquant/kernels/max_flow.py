"""Maximum flow by two trees that grow from the source and the sink until they meet (Boykov and Kolmogorov, 2004).

An arc a leads from its node to `head[a]`, with residual capacity `rest[a]` and reverse arc `sister[a]`; the arcs of
node i are first[i] .. first[i + 1]. `terminal[i]` is the residual capacity from the source to i, or below 0 from i
to the sink.
"""

import numpy as np

from mrfquant.kernels.layout import jit

NONE, TERMINAL, ORPHAN = -1, -2, -3  # instead of the arc to a node's parent
FREE, SOURCE, SINK = 0, 1, 2  # trees


@jit()
def augment(middle, head, sister, rest, terminal, parent, orphans, count):
    """Augment the path through an arc between the trees; return the flow and the number of orphans."""
    amount = rest[middle]
    i = head[sister[middle]]
    while parent[i] != TERMINAL:
        amount = min(amount, rest[sister[parent[i]]])
        i = head[parent[i]]
    amount = min(amount, terminal[i])
    i = head[middle]
    while parent[i] != TERMINAL:
        amount = min(amount, rest[parent[i]])
        i = head[parent[i]]
    amount = min(amount, -terminal[i])
    rest[sister[middle]] += amount
    rest[middle] -= amount
    for side in range(2):
        i = head[sister[middle]] if side == 0 else head[middle]
        while parent[i] != TERMINAL:
            a = parent[i]
            down, up = (sister[a], a) if side == 0 else (a, sister[a])
            rest[up] += amount
            rest[down] -= amount
            if rest[down] <= 0:
                parent[i] = ORPHAN
                orphans[count] = i
                count += 1
            i = head[a]
        terminal[i] += amount if side else -amount
        if terminal[i] == 0:
            parent[i] = ORPHAN
            orphans[count] = i
            count += 1
    return amount, count


@jit()
def distance(i, head, parent, stamp, far, time):
    """Return the distance of a node from its terminal, -1 below an orphan; distances are cached for this `time`."""
    steps, j = 0, i
    while True:
        if stamp[j] == time:
            steps += far[j]
            break
        a = parent[j]
        steps += 1
        if a == TERMINAL:
            stamp[j], far[j] = time, 1
            break
        if a in (ORPHAN, NONE):
            return -1
        j = head[a]
    j, left = i, steps
    while stamp[j] != time:
        stamp[j], far[j] = time, left
        left -= 1
        j = head[parent[j]]
    return steps


@jit()
def adopt(i, first, head, sister, rest, tree, parent, stamp, far, time):
    """Return the arc to a new parent of an orphan, the nearest to the terminal; NONE if there is none."""
    best, nearest = NONE, 0
    for a in range(first[i], first[i + 1]):
        j = head[a]
        open_ = rest[sister[a]] > 0 if tree[i] == SOURCE else rest[a] > 0
        if open_ and tree[j] == tree[i] and parent[j] != NONE:
            steps = distance(j, head, parent, stamp, far, time)
            if steps >= 0 and (best == NONE or steps < nearest):
                best, nearest = a, steps
    if best != NONE:
        stamp[i], far[i] = time, nearest + 1
    return best


@jit()
def max_flow(first, head, sister, rest, terminal, tree):
    """Return the maximum flow from the source to the sink.

    Changes `rest` and `terminal`, and sets tree (n,) to SOURCE for the nodes on the source's side of a minimum cut.
    """
    n = len(tree)
    parent, stamp, far = np.full(n, NONE), np.zeros(n, np.int64), np.zeros(n, np.int64)
    queue, waiting, begin, end = np.empty(n, np.int64), np.zeros(n, np.bool_), 0, 0  # a ring of nodes that may grow
    orphans = np.empty(2 * n + 2, np.int64)
    total, time, current = 0.0, 0, -1
    for i in range(n):
        tree[i] = FREE
        if terminal[i] != 0:
            tree[i] = SOURCE if terminal[i] > 0 else SINK
            parent[i], far[i] = TERMINAL, 1
            waiting[i] = True
            queue[end % n] = i
            end += 1
    while True:
        i = current
        if i < 0 or parent[i] == NONE:
            i = -1
            while begin < end and i < 0:
                j = queue[begin % n]
                begin += 1
                waiting[j] = False
                if parent[j] != NONE:
                    i = j
            if i < 0:
                return total
        middle = NONE
        for a in range(first[i], first[i + 1]):
            if (rest[a] if tree[i] == SOURCE else rest[sister[a]]) <= 0:
                continue
            j = head[a]
            if tree[j] == FREE:
                tree[j], parent[j], stamp[j], far[j] = tree[i], sister[a], stamp[i], far[i] + 1
                if not waiting[j]:
                    waiting[j] = True
                    queue[end % n] = j
                    end += 1
            elif tree[j] != tree[i]:
                middle = a if tree[i] == SOURCE else sister[a]
                break
            elif stamp[j] <= stamp[i] and far[j] > far[i]:
                parent[j], stamp[j], far[j] = sister[a], stamp[i], far[i] + 1
        time += 1
        if middle == NONE:
            current = -1
            continue
        current = i
        sent, count = augment(middle, head, sister, rest, terminal, parent, orphans, 0)
        total += sent
        done = 0
        while done < count:
            i = orphans[done]
            done += 1
            parent[i] = adopt(i, first, head, sister, rest, tree, parent, stamp, far, time)
            if parent[i] != NONE:
                continue
            for a in range(first[i], first[i + 1]):  # free again: neighbours may reach it, children are orphans
                j = head[a]
                if tree[j] != tree[i] or parent[j] == NONE:
                    continue
                if (rest[sister[a]] if tree[i] == SOURCE else rest[a]) > 0 and not waiting[j]:
                    waiting[j] = True
                    queue[end % n] = j
                    end += 1
                if parent[j] >= 0 and head[parent[j]] == i:
                    parent[j] = ORPHAN
                    if count == len(orphans):
                        orphans[: count - done] = orphans[done:count].copy()
                        count -= done
                        done = 0
                    orphans[count] = j
                    count += 1
            tree[i] = FREE
