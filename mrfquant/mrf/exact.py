"""Exact inference: by listing all labellings, or on a junction tree where the graph is thin enough."""

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.errors import BadInput
from mrfquant.mrf.clique_tree import Clique, CliqueTree, NumpyArrays, free_memory
from mrfquant.mrf.contradiction import contradiction
from mrfquant.mrf.decomposition import best_order
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.solver import FieldSolver

LABELLINGS_PER_CHUNK = 2**12
TABLES_AT_ONCE = 4  # of the largest size, in a pass


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

    def factor_marginals(self) -> list[Tensor]:
        every, p = self._labelling(torch.arange(self._count, device=self.graph.device)), self._scores.softmax(0)
        found = []
        for group in self.graph.groups:
            factors = torch.arange(len(group), device=self.graph.device).expand(len(every), -1)
            entries = (*every[:, group.scopes].unbind(-1), factors)
            share = torch.zeros(group.tables.shape, dtype=p.dtype, device=p.device)
            found.append(share.index_put_(entries, p[:, None].expand(factors.shape), accumulate=True))
        return found

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


class TorchArrays(NumpyArrays):
    """Array operations by torch, in the graph's dtype and on its device."""

    def __init__(self, graph: FactorGraph) -> None:
        self._zero = graph.uniform().new_zeros(1)

    def zero(self) -> Tensor:
        return self._zero

    def repeat(self, table: Tensor, times: int) -> Tensor:
        return table.repeat_interleave(times)

    def permute(self, table: Tensor, axes: Sequence[int]) -> Tensor:
        return table.permute(*axes)

    def exp(self, table: Tensor) -> Tensor:
        return table.exp_()

    def clean(self, table: Tensor, value: float) -> Tensor:
        return table.nan_to_num_(value, neginf=-math.inf)

    def largest(self, table: Tensor, axes: Sequence[int]) -> Tensor:
        return table.amax(tuple(axes))

    def argmax(self, table: Tensor) -> tuple[Tensor, Tensor]:
        values, rows = table.max(0)
        return values, rows.to(torch.uint8 if len(table) <= 256 else torch.int64)

    def logsumexp(self, table: Tensor) -> Tensor:
        return table.logsumexp(0)


@configurable(supplied=["graph", "seed", "start"])
class JunctionTree(_Exact):
    """Passes messages between the cliques of a tree decomposition, the thinnest of many elimination orders.

    Args:
        width_limit: log2 of the entries of the largest table; a wider graph is refused. At 25 a table takes 256 MB in
            float64; a few of them and a message for each clique are needed.
        tries: number of elimination orders to try.
        seconds: time to try them.

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
        seconds: Positive = 2.0,
    ) -> None:
        super().__init__(graph, seed, start)
        cards, neighbours = graph.cardinalities.tolist(), graph.neighbours()
        sizes = [math.log2(c) for c in cards]
        order, self.width, known = best_order(neighbours, sizes, width_limit, tries, seconds)
        if self.width > width_limit:
            size = f"2^{self.width:.1f} entries" + ("" if known else " or more")
            raise TooWide(
                f"the junction tree needs a table of {size}, the limit is 2^{width_limit:g}: raise "
                "JunctionTree.width_limit if the memory allows, or use an approximate solver such as BeliefPropagation"
            )
        self.tree = CliqueTree(cards, graph.factors(), graph.constant, order, neighbours, TorchArrays(graph))
        self._check_memory()

    def log_z(self) -> float:
        return self._sums[1]

    def marginals(self) -> Tensor:
        return self._sums[0]

    def labels(self) -> Tensor:
        return self._best

    def factor_marginals(self) -> list[Tensor]:
        tree, cards = self.tree, self.tree.cards
        found = [torch.ones_like(group.tables) for group in self.graph.groups]
        at = [(g, f) for g, group in enumerate(self.graph.groups) for f in range(len(group))]

        def read(clique: Clique, table: Tensor) -> None:
            for number, (scope, _) in zip(clique.numbers, clique.factors, strict=True):
                g, f = at[number]
                own = tree.sum_onto(table, clique.variables, scope).view([cards[v] for v in scope])
                listed = [v for v in self.graph.groups[g].scopes[f].tolist() if v in scope]
                shape = self.graph.groups[g].shape
                found[g][..., f] = own.permute([scope.index(v) for v in listed]).reshape(shape)

        tree.distribute(read)
        return found

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> Tensor:
        """Draw independent labellings from the field's distribution: int64 (count, n)."""
        random = torch.Generator(self.graph.device).manual_seed(seed)
        labels = torch.zeros(count, len(self.graph), dtype=torch.int64, device=self.graph.device)
        inboxes, log_z = self.tree.collect(lambda _, table: table.logsumexp(0), keep=True)
        if log_z == -math.inf:
            raise contradiction()
        for clique, inbox in zip(reversed(self.tree.cliques), reversed(inboxes), strict=True):
            column = torch.zeros_like(labels[:, 0])
            for v in clique.separator:
                column = column * self.tree.cards[v] + labels[:, v]
            given, which = column.unique(return_inverse=True)
            shares = self.tree.table(clique, inbox)[:, given].softmax(0)
            draw = torch.rand(count, generator=random, dtype=shares.dtype, device=shares.device)
            drawn = (shares.cumsum(0).t()[which] < draw[:, None]).sum(1)
            labels[:, clique.variable] = drawn.clamp_(max=len(shares) - 1)
        return labels

    @cached_property
    def _sums(self) -> tuple[Tensor, float]:
        """The marginals and log Z."""
        rows, log_z = self.tree.marginals()
        if log_z == -math.inf:
            raise contradiction()
        return self.graph.flat(rows), log_z

    @cached_property
    def _best(self) -> Tensor:
        """A labelling of largest score."""
        labels, score = self.tree.best()
        if score == -math.inf:
            raise contradiction()
        return torch.tensor(labels, dtype=torch.int64, device=self.graph.device)

    def _check_memory(self) -> None:
        """Refuse a graph whose largest tables and messages do not fit into the free memory."""
        entries = TABLES_AT_ONCE * 2**self.width + self.tree.message_entries + self.graph.stored_entries
        needed, free = self.graph.dtype.itemsize * entries, free_memory()
        if self.graph.device.type == "cpu" and needed > free:
            raise TooWide(
                f"the junction tree needs about {needed / 2**30:.1f} GB (largest table 2^{self.width:.1f} entries), "
                f"{free / 2**30:.1f} GB are free: use an approximate solver such as BeliefPropagation"
            )
