"""Messages on the cliques of an elimination order: sums and maxima over all labellings, by numpy or by torch.

Cliques are numbered in the order of elimination: clique i has the i-th variable and its separator, the neighbours that
are left; its parent is the clique of the first of these. A clique lists its variables in the order of elimination. So a
table is a matrix (labels, separator), a message has the order of its receiver, and a factor belongs to the clique of
the first of its variables.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mrfquant.errors import BadInput
from mrfquant.mrf.decomposition import Neighbours, cliques_of

Array = Any  # of numpy or torch
Term = tuple[Sequence[int], Array]  # variables in the order of elimination, and log-potentials over them


class NumpyArrays:
    """The operations on tables that a clique tree needs."""

    def zero(self) -> Array:
        return np.zeros(1)

    def repeat(self, table: Array, times: int) -> Array:
        return np.repeat(table, times)

    def permute(self, table: Array, axes: Sequence[int]) -> Array:
        return table.transpose(axes)

    def exp(self, table: Array) -> Array:
        return np.exp(table)

    def clean(self, table: Array, value: float) -> Array:
        """Replace nan: what a forbidden separator has."""
        return np.nan_to_num(table, copy=False, nan=value, neginf=-np.inf)

    def largest(self, table: Array, axes: Sequence[int]) -> Array:
        return table.max(tuple(axes))

    def argmax(self, table: Array) -> tuple[Array, Array]:
        """Return the largest entries of the columns and their rows, of which there are few."""
        return table.max(0), table.argmax(0).astype(np.min_scalar_type(len(table)))

    def logsumexp(self, table: Array) -> Array:
        """Reduce the first axis."""
        top = table.max(0)
        safe = np.where(np.isneginf(top), 0, top)
        with np.errstate(divide="ignore"):
            return np.log(np.exp(table - safe).sum(0)) + safe


@dataclass
class Clique:
    """A variable, the variables of its separator, the factors that are counted here, and their numbers."""

    variable: int
    separator: list[int]
    parent: int | None
    factors: list[Term] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)

    @property
    def variables(self) -> list[int]:
        return [self.variable, *self.separator]


class CliqueTree:
    """The cliques of an elimination order, with the factors of a field.

    Args:
        cards: number of labels of each variable.
        factors: variables and log-potentials; those over variables of one label only are constants.
        constant: added to the score of every labelling.
        order: elimination order of the variables with two labels or more.
        neighbours: the variables that share a factor with each of them.
        arrays: operations on tables.
    """

    def __init__(
        self,
        cards: Sequence[int],
        factors: Iterable[tuple[Sequence[int], Array]],
        constant: float,
        order: Sequence[int],
        neighbours: Neighbours,
        arrays: Any = None,
    ) -> None:
        self.cards, self.constant, self.arrays = cards, constant, arrays or NumpyArrays()
        when = {v: i for i, v in enumerate(order)}
        self.cliques: list[Clique] = []
        for v, around in cliques_of(order, neighbours):
            separator = sorted(around, key=when.__getitem__)
            self.cliques.append(Clique(v, separator, when[separator[0]] if separator else None))
        for i, clique in enumerate(self.cliques):
            if clique.parent is not None:
                self.cliques[clique.parent].children.append(i)
        for f, (scope, table) in enumerate(factors):
            kept = [v for v in scope if v in when]
            table = table.reshape([cards[v] for v in kept])
            by_turn = sorted(range(len(kept)), key=lambda a: when[kept[a]])
            if kept:
                home = self.cliques[when[kept[by_turn[0]]]]
                home.factors.append(([kept[a] for a in by_turn], self.arrays.permute(table, by_turn)))
                home.numbers.append(f)
            else:
                self.constant += float(table)

    @property
    def entries(self) -> int:
        """Number of entries of all tables: the work of a pass."""
        return sum(math.prod(self.cards[v] for v in clique.variables) for clique in self.cliques)

    @property
    def message_entries(self) -> int:
        """Number of entries of all messages."""
        return sum(math.prod(self.cards[v] for v in clique.separator) for clique in self.cliques)

    def collect(self, reduce: Callable[[Clique, Array], Array], keep: bool = False) -> tuple[list[list[Term]], float]:
        """Pass messages to the roots: each clique's table (labels, separator), reduced to its separator.

        Args:
            reduce: gives a clique's message from its table.
            keep: keep the messages for a way back; there may be many, and large.

        Returns:
            For each clique its factors and the messages to it, and the result; -inf if no labelling is possible.
        """
        inboxes, total = [list(clique.factors) for clique in self.cliques], self.constant
        for i, clique in enumerate(self.cliques):
            message = reduce(clique, self.table(clique, inboxes[i]))
            if not keep:
                inboxes[i] = []
            top = float(message.max())
            total += top
            if top == -math.inf:
                break
            if clique.parent is not None:
                inboxes[clique.parent].append((clique.separator, message - top))
        return inboxes, total

    def restricted(self, allowed: Mapping[int, Array]) -> CliqueTree:
        """Return the same tree with another log-potential for each label of some variables."""
        other = copy.copy(self)
        other.cliques = [
            replace(c, factors=[*c.factors, ([c.variable], allowed[c.variable])]) if c.variable in allowed else c
            for c in self.cliques
        ]
        return other

    def log_z(self) -> float:
        """Return the logarithm of the sum over all labellings."""
        return self.collect(lambda _, table: self.arrays.logsumexp(table))[1]

    def best(self, summed: frozenset[int] = frozenset()) -> tuple[list[int], float]:
        """Return a labelling of largest score, and the score.

        Args:
            summed: variables that are summed out instead, first in the order; they get label 0.
        """
        choices: list[Array] = []

        def reduce(clique: Clique, table: Array) -> Array:
            if clique.variable in summed:
                choices.append(None)
                return self.arrays.logsumexp(table)
            best, choice = self.arrays.argmax(table)
            choices.append(choice)
            return best

        _, score = self.collect(reduce)
        labels = [0] * len(self.cards)
        for clique, choice in zip(reversed(self.cliques), reversed(choices), strict=False):
            if choice is not None:
                column = 0
                for v in clique.separator:
                    column = column * self.cards[v] + labels[v]
                labels[clique.variable] = int(choice[column])
        return labels, score

    def distribute(self, read: Callable[[Clique, Array], None]) -> float:
        """Call `read` with the marginals of each clique, (labels, separator), from the roots on; return log Z."""
        inboxes, log_z = self.collect(lambda _, table: self.arrays.logsumexp(table), keep=True)
        shares: dict[int, Array] = {}
        for i in reversed(range(len(self.cliques)) if log_z > -math.inf else ()):
            clique, inbox = self.cliques[i], inboxes[i]
            table = self.table(clique, inbox)
            table -= self.arrays.logsumexp(table)
            table = self.arrays.clean(self.arrays.exp(table), 0.0)
            if i in shares:
                table *= shares.pop(i)
            inboxes[i] = []  # not needed again, as the share: they may be large
            read(clique, table)
            for child in clique.children:
                shares[child] = self.sum_onto(table, clique.variables, self.cliques[child].separator)
        return log_z

    def marginals(self) -> tuple[list[list[float]], float]:
        """Return the marginals of each variable, and log Z."""
        rows = [[1.0]] * len(self.cards)

        def read(clique: Clique, table: Array) -> None:
            rows[clique.variable] = table.sum(1).tolist()

        log_z = self.distribute(read)
        return rows, log_z

    def max_marginals(self) -> list[list[float]]:
        """Return for each label of each variable the largest score of a labelling that has it."""
        inboxes, best = self.collect(lambda _, table: self.arrays.largest(table, [0]), keep=True)
        rows, shares = [[best]] * len(self.cards), dict[int, Array]()
        for i in reversed(range(len(self.cliques))):
            clique, table = self.cliques[i], self.table(self.cliques[i], inboxes[i])
            table = self.arrays.clean(table - self.arrays.largest(table, [0]), -math.inf)
            table = table + (shares.pop(i) if i in shares else best)
            rows[clique.variable] = self.arrays.largest(table, [1]).tolist()
            for child in clique.children:
                sizes, gone = self._split(clique.variables, self.cliques[child].separator)
                kept = table.reshape(sizes)
                shares[child] = (self.arrays.largest(kept, gone) if gone else kept).reshape(-1)
        return rows

    def table(self, clique: Clique, terms: list[Term]) -> Array:
        """Return the sum of the terms as a matrix (labels, separator).

        It grows variable by variable: a term is added as soon as all of its variables are there, when the table is
        still small.
        """
        ending: dict[int, list[Term]] = {}
        for term in terms:
            ending.setdefault(term[0][-1], []).append(term)
        table = self.arrays.zero()
        for count, v in enumerate(clique.variables, 1):
            table = self.arrays.repeat(table, self.cards[v])
            for scope, values in ending.get(v, []):
                sizes, gone = self._split(clique.variables[:count], scope)
                shape = [1 if axis in gone else size for axis, size in enumerate(sizes)]
                view = table.reshape(sizes)
                view += values.reshape(shape)
        return table.reshape(self.cards[clique.variable], -1)

    def sum_onto(self, table: Array, variables: Sequence[int], kept: Sequence[int]) -> Array:
        """Sum out of a table the variables that are not kept."""
        sizes, gone = self._split(variables, kept)
        return (table.reshape(sizes).sum(gone) if gone else table).reshape(-1)

    def _split(self, variables: Sequence[int], scope: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """Join neighbouring variables to one axis if all or none are in the scope.

        Return the sizes, and the axes of those that are not.
        """
        runs = [(inside, list(run)) for inside, run in itertools.groupby(variables, set(scope).__contains__)]
        sizes = [math.prod(self.cards[v] for v in run) for _, run in runs]
        return sizes, tuple(axis for axis, (inside, _) in enumerate(runs) if not inside)


def check_memory(needed: float, what: str, advice: str) -> None:
    """Refuse to allocate more bytes than are free."""
    if needed > (free := free_memory()):
        told = f"{what} would need {needed / 2**30:.1f} GB, {free / 2**30:.1f} GB are free"
        raise BadInput(f"{told}: {advice}")


def free_memory() -> float:
    """Return the free bytes of memory; inf where they are not known."""
    try:
        with open("/proc/meminfo") as lines:
            return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not a Linux system
        return math.inf
