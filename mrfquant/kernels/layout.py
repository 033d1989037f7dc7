"""A factor graph as plain arrays for compiled loops: costs are negative log-potentials, inf for what is forbidden."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

COMPILED = find_spec("numba") is not None


def jit(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return numba's decorator, or without numba one that does nothing: the same loops, only slow."""
    if not COMPILED:
        return lambda function: function
    from mrfquant.kernels.jit import jit as compiled

    return compiled(**options)


class Layout(NamedTuple):
    """n variables and F factors of two or more variables, as flat arrays.

    A *slot* is a variable of a factor, a *place* is a label of a variable in a vector where the labels of a variable
    follow each other.
    """

    cards: np.ndarray  # (n,) labels of each variable
    first: np.ndarray  # (n + 1,) place of its label 0
    begin: np.ndarray  # (F + 1,) first slot of each factor
    scope: np.ndarray  # (slots,) variable of each slot
    factor: np.ndarray  # (slots,) factor of each slot
    stride: np.ndarray  # (slots,) from a label to the next in the factor's table
    start: np.ndarray  # (slots + 1,) where a slot's message, a number per label, begins in a vector of all messages
    table: np.ndarray  # (F,) where the factor's costs begin in `values`
    values: np.ndarray  # costs of all tables; factors with equal tables may share one
    near: np.ndarray  # (n + 1,) where the slots of each variable begin in `slots`
    slots: np.ndarray  # (slots,) the slots of variable 0, of variable 1, ...


@jit()
def cost(field, f, labels):
    """Return the cost of a labelling (n,) in one factor."""
    at = field.table[f]
    for s in range(field.begin[f], field.begin[f + 1]):
        at += field.stride[s] * labels[field.scope[s]]
    return field.values[at]


@jit()
def energy(field, unary, labels):
    """Return the energy of a labelling (n,)."""
    total = 0.0
    for v in range(len(field.cards)):
        total += unary[field.first[v] + labels[v]]
    for f in range(len(field.table)):
        total += cost(field, f, labels)
    return total


@jit()
def draw(state, below):
    """Draw a whole number from 0 to below - 1; state: (1,) uint64, not 0."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return np.int64((x >> np.uint64(11)) % np.uint64(below))
