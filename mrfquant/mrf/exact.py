"""Exact inference: by listing all labellings, or on a junction tree where the graph is thin enough."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx
import torch
from torch import Tensor

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.errors import BadInput
from mrfquant.mrf.decomposition import best_tree
from mrfquant.mrf.factor_graph import FactorGraph, contradiction
from mrfquant.mrf.solver import FieldSolver

LABELLINGS_PER_CHUNK = 2**12
TABLES_AT_ONCE = 4  # of the largest size, in a pass
Term = tuple[Sequence[int], Tensor]  # variables in the order of the tree, and log-potentials over them


class TooWide(BadInput):
    """The junction tree would need a table beyond the limit."""


class _Exact(FieldSolver):
    """A solver that is done after one step; results are computed at the first request."""

    direction = "exact"

    def step(self) -> float:
        self.marginals()
        return 0.0

    def bound(self) -> float:
        return self.graph.energy(self.labels()).item()


@configurable(supplied=["graph", "seed", "start"])
class Enumeration(_Exact):
    """Scores every labelling: slow, and simple enough to test other solvers against.

    Args:
        limit: the most labellings; a graph with more is refused.
    """

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, limit: Count = 2**20) -> None:
        super().__init__(graph, seed, start)
        self._cards = graph.cardinalities.tolist()
        self._count = math.prod(self._cards)
        if self._count > limit:
            told = f"the graph has 2^{math.log2(self._count):.1f} labellings, more than the {limit} that are listed"
            raise BadInput(f"{told}: raise Enumeration.limit, or use JunctionTree")

    def log_z(self) -> float:
        return self._scores.logsumexp(0).item()

    def marginals(self) -> Tensor:
        return self._marginals

    def labels(self) -> Tensor:
        return self._labelling(self._scores.argmax())

    @cached_property
    def _scores(self) -> Tensor:
        numbers = torch.arange(self._count, device=self.graph.device)
        scores = torch.cat([self.graph.score(self._labelling(part)) for part in numbers.split(LABELLINGS_PER_CHUNK)])
        if scores.isneginf().all():
            raise contradiction()
        return scores

    @cached_property
    def _marginals(self) -> Tensor:
        joint, before, rows = self._scores.softmax(0), 1, []
        for c in self._cards:
            rows.append(joint.view(before, c, -1).sum((0, 2)).tolist())
            before *= c
        return self.graph.flat(rows)

    def _labelling(self, number: Tensor) -> Tensor:
        """Return the labels (..., n) of labellings (...), numbered with the last variable running fastest."""
        labels = number.new_empty(*number.shape, len(self._cards))
        for v in reversed(range(len(self._cards))):
            labels[..., v] = number % self._cards[v]
            number = number // self._cards[v]
        return labels


@dataclass(frozen=True)
class _Clique:
    """A clique of the tree."""

    own: list[int]  # its variables that are not in its parent
    separator: list[int]  # those that are
    parent: int | None
    children: list[int]
    factors: list[Term]  # that are counted here
    numbers: list[int]  # their numbers in the graph

    @property
    def variables(self) -> list[int]:
        return [*self.own, *self.separator]


@configurable(supplied=["graph", "seed", "start"])
class JunctionTree(_Exact):
    """Passes messages between the cliques of a tree decomposition, the thinnest of many elimination orders.

    Cliques are numbered from the root on, and list their variables from the last met on this way to the first. So a
    table is a matrix (own, separator) without transposition, a message has the order of its receiver, and a factor
    belongs to the clique where the last of its variables is met.

    Args:
        width_limit: log2 of the entries of the largest table; a wider graph is refused. At 25 a table takes 256 MB in
            float64; a few of them and a message for each clique are needed.
        tries: number of elimination orders to try.

    Attributes:
        width: log2 of the entries of the largest table.
    """

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        width_limit: Positive = 25,
        tries: Count = 40,
    ) -> None:
        super().__init__(graph, seed, start)
        self._cards = graph.cardinalities.tolist()
        logs = [math.log2(c) for c in self._cards]
        tree, self.width, known = best_tree(graph.neighbours(), logs, width_limit, tries)
        if self.width > width_limit:
            size = f"2^{self.width:.1f} entries" + ("" if known else " or more")
            raise TooWide(
                f"the junction tree needs a table of {size}, the limit is 2^{width_limit:g}: raise "
                "JunctionTree.width_limit if the memory allows, or use an approximate solver such as BeliefPropagation"
            )
        self._cliques = self._rooted(tree)
        self._check_memory()

    def log_z(self) -> float:
        return self._sums[0]

    def marginals(self) -> Tensor:
        return self._sums[1]

    def labels(self) -> Tensor:
        return self._best

    def factor_marginals(self) -> list[Tensor]:
        found = [torch.ones_like(group.tables) for group in self.graph.groups]
        at = [(g, f) for g, group in enumerate(self.graph.groups) for f in range(len(group))]

        def read(clique: _Clique, table: Tensor) -> None:
            for number, (scope, _) in zip(clique.numbers, clique.factors, strict=True):
                g, f = at[number]
                kept = sorted(scope, key=clique.variables.index)
                own = self._sum_onto(table, clique.variables, kept).view([self._cards[v] for v in kept])
                listed = [v for v in self.graph.groups[g].scopes[f].tolist() if v in kept]
                shape = self.graph.groups[g].shape
                found[g][..., f] = own.permute([kept.index(v) for v in listed]).reshape(shape)

        self._distribute(read)
        return found

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> Tensor:
        """Draw independent labellings from the field's distribution: int64 (count, n)."""
        random = torch.Generator(self.graph.device).manual_seed(seed)
        labels = torch.zeros(count, len(self.graph), dtype=torch.int64, device=self.graph.device)
        inboxes, _ = self._collect(lambda table: table.logsumexp(0))
        for clique, inbox in zip(self._cliques, inboxes, strict=True):
            column = torch.zeros_like(labels[:, 0])
            for v in clique.separator:
                column = column * self._cards[v] + labels[:, v]
            given, which = column.unique(return_inverse=True)
            shares = self._table(clique, inbox)[:, given].softmax(0)
            draw = torch.rand(count, generator=random, dtype=shares.dtype, device=shares.device)
            row = (shares.cumsum(0).t()[which] < draw[:, None]).sum(1).clamp_(max=len(shares) - 1)
            for v in reversed(clique.own):
                labels[:, v] = row % self._cards[v]
                row = row // self._cards[v]
        return labels

    @cached_property
    def _sums(self) -> tuple[float, Tensor]:
        """log Z and the marginals."""
        rows = [[1.0]] * len(self.graph)

        def read(clique: _Clique, table: Tensor) -> None:
            own, before = table.sum(1), 1
            for v in clique.own:
                rows[v] = own.view(before, self._cards[v], -1).sum((0, 2)).tolist()
                before *= self._cards[v]

        log_z = self._distribute(read)
        return log_z, self.graph.flat(rows)

    def _distribute(self, read: Callable[[_Clique, Tensor], None]) -> float:
        """Call `read` with p(own | separator) p(separator) of each clique, from the root on; return log Z."""
        inboxes, log_z = self._collect(lambda table: table.logsumexp(0))
        shares = {0: torch.ones(1, dtype=self.graph.dtype, device=self.graph.device)}
        for k, clique in enumerate(self._cliques):
            table = self._table(clique, inboxes[k]).softmax(0).nan_to_num_(0)  # nan: a separator that is forbidden
            table *= shares.pop(k)
            inboxes[k] = []  # not needed again, as the share: they may be large
            read(clique, table)
            for child in clique.children:
                shares[child] = self._sum_onto(table, clique.variables, self._cliques[child].separator)
        return log_z

    @cached_property
    def _best(self) -> Tensor:
        """A labelling of largest score: each clique's own labels, given those of the cliques before it."""
        choices: list[Tensor] = []

        def reduce(table: Tensor) -> Tensor:
            values, rows = table.max(0)
            choices.append(rows)
            return values

        self._collect(reduce)
        labels = [0] * len(self.graph)
        for clique, choice in zip(self._cliques, reversed(choices), strict=True):
            column = 0
            for v in clique.separator:
                column = column * self._cards[v] + labels[v]
            row = int(choice[column])
            for v in reversed(clique.own):
                row, labels[v] = divmod(row, self._cards[v])
        return torch.tensor(labels, dtype=torch.int64, device=self.graph.device)

    def _collect(self, reduce: Callable[[Tensor], Tensor]) -> tuple[list[list[Term]], float]:
        """Pass messages to the root: every clique's table (own, separator), reduced to its separator.

        Returns:
            For each clique its factors and the messages to it, and the root's result.
        """
        inboxes, total = [list(clique.factors) for clique in self._cliques], self._constant
        for clique, inbox in zip(reversed(self._cliques), reversed(inboxes), strict=True):
            message = reduce(self._table(clique, inbox))
            top = message.max().item()
            if top == -math.inf:
                raise contradiction()
            total += top
            if clique.separator and clique.parent is not None:
                inboxes[clique.parent].append((clique.separator, message - top))
        return inboxes, total

    def _table(self, clique: _Clique, terms: list[Term]) -> Tensor:
        """Return the sum of the terms as a matrix (own, separator), which grows variable by variable: a term is added
        as soon as all of its variables are there, when the table is still small."""
        ending: dict[int, list[Term]] = {}
        for term in terms:
            ending.setdefault(term[0][-1], []).append(term)
        table = torch.zeros(1, dtype=self.graph.dtype, device=self.graph.device)
        for count, v in enumerate(clique.variables, 1):
            table = table.repeat_interleave(self._cards[v])
            for scope, values in ending.get(v, []):
                sizes, inside = self._runs(clique.variables[:count], scope)
                shape = [size if i else 1 for size, i in zip(sizes, inside, strict=True)]
                table.view(sizes).add_(values.reshape(shape))
        return table.view(math.prod(self._cards[v] for v in clique.own), -1)

    def _sum_onto(self, table: Tensor, variables: Sequence[int], kept: Sequence[int]) -> Tensor:
        """Sum out of a table the variables that are not kept."""
        sizes, inside = self._runs(variables, kept)
        gone = [axis for axis, i in enumerate(inside) if not i]
        return (table.view(sizes).sum(gone) if gone else table).reshape(-1)

    def _runs(self, variables: Sequence[int], scope: Sequence[int]) -> tuple[list[int], list[bool]]:
        """Join neighbouring variables to one axis if all or none are in the scope; return the sizes."""
        runs = [(inside, list(run)) for inside, run in itertools.groupby(variables, set(scope).__contains__)]
        return [math.prod(self._cards[v] for v in run) for _, run in runs], [inside for inside, _ in runs]

    @property
    def entries(self) -> int:
        """Number of entries of all tables: the work of a pass."""
        return sum(math.prod(self._cards[v] for v in clique.variables) for clique in self._cliques)

    def _check_memory(self) -> None:
        """Refuse a graph whose largest tables and messages do not fit into the free memory."""
        messages = sum(math.prod(self._cards[v] for v in clique.separator) for clique in self._cliques)
        needed = self.graph.dtype.itemsize * (TABLES_AT_ONCE * 2**self.width + messages)
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:  # not a Linux system
            lines = []
        free = next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)
        if self.graph.device.type == "cpu" and needed > free:
            raise TooWide(
                f"the junction tree needs about {needed / 2**30:.1f} GB (largest table 2^{self.width:.1f} entries), "
                f"{free / 2**30:.1f} GB are free: use an approximate solver such as BeliefPropagation"
            )

    def _rooted(self, tree: networkx.Graph) -> list[_Clique]:
        """Return the cliques from the root on, with the graph's factors; constant factors go to `_constant`."""
        root = next(iter(tree))
        cliques: list[_Clique] = []
        number: dict[frozenset[int], int] = {}
        met: dict[int, int] = {}  # when each variable was met
        home: dict[int, int] = {}  # and where
        for parent, bag in [(None, root), *networkx.dfs_edges(tree, root)]:
            number[bag] = len(cliques)
            separator = sorted((v for v in bag if v in met), key=met.__getitem__, reverse=True)
            own = sorted(v for v in bag if v not in met)
            met |= {v: len(met) + i for i, v in enumerate(own)}
            home |= dict.fromkeys(own, len(cliques))
            if parent is not None:
                cliques[number[parent]].children.append(len(cliques))
            cliques.append(_Clique(own[::-1], separator, None if parent is None else number[parent], [], [], []))
        self._constant = self.graph.constant
        for f, (scope, table) in enumerate(self.graph.factors()):
            table, scope = table.squeeze(), [v for v in scope if v in met]
            when = [met[v] for v in scope]
            order = sorted(range(len(scope)), key=when.__getitem__, reverse=True)
            if scope:
                first = scope[order[0]]
                cliques[home[first]].factors.append(([scope[a] for a in order], table.permute(order)))
                cliques[home[first]].numbers.append(f)
            else:
                self._constant += table.item()
        return cliques
