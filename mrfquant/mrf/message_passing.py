"""Loopy belief propagation, and tree-reweighted belief propagation, its convex form, which bounds log Z.

Both maximise   sum_a <θ_a, μ_a> + w_a H(μ_a)  +  sum_i <θ_i, μ_i> + (1 - sum_{a ∋ i} w_a) H(μ_i)

over locally consistent marginals of the factors a and the variables i. With messages m_ai from factors to variables,

    log μ_i = θ_i + sum_a w_a m_ai,    log μ_a = θ_a / w_a + sum_i (log μ_i - m_ai),

up to constants. Bethe: w = 1. Tree-reweighted: the variables are ordered, and the weights w_a of the factors in which a
variable is not the last sum to at most 1; the rest of the 1 is w_i. By a chain of conditional entropies, the entropy
counted here is at least the true one. And with U_i the terms of the score that remain for a variable when each factor
is written as a product of conditional distributions, the first given the later ones,

    log Z  <=  sum_i w_i log sum_{x_i} exp(U_i / w_i)

by Hölder's inequality, for any messages; at the fixed point it is what the messages maximise.

Sums over the labels of other variables are products with exp(θ_a / w_a), which is computed once; where factors share a
table, one matrix product serves them all. A sum that underflows is computed again by logarithms.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from mrfquant.config.settings import Check, Damping, NonNegative, configurable
from mrfquant.errors import BadInput
from mrfquant.mrf.arrays import possible_labels
from mrfquant.mrf.clique_tree import free_memory
from mrfquant.mrf.factor_graph import Evidence, FactorGraph
from mrfquant.mrf.groups import Group, along, contract, is_shared, pick
from mrfquant.mrf.result import Direction
from mrfquant.mrf.solver import FieldSolver

# Messages are 0 at their largest. Those of labels that constraints rule out may fall for ever: changes below this value
# do not matter to any marginal.
MIN_LOG_MESSAGE = -50.0
ENTRIES_PER_PART = 2**20  # table entries of factors that are updated together
MIN_START_PROBABILITY = 1e-300
ZERO_WEIGHT = 1e-9  # a smaller weight is a floating-point error
UNDERFLOW = 2.0**20  # times the smallest normal number: sums below it are computed by logarithms
KEPT = 0.3  # fraction of the free memory that exponentials of all tables may take to be kept

Share = Annotated[float, Check(lambda v: 0 < v <= 1, "a number above 0 and up to 1")]


@configurable(supplied=["graph", "seed", "start"])
class BeliefPropagation(FieldSolver):
    """Loopy belief propagation; exact on trees.

    Labels that hard constraints make impossible are found first and have probability 0 exactly; messages between the
    others are finite.

    Args:
        mode: 'sum' for marginals and the Bethe estimate of log Z, 'max' for the most probable labelling.
        damping: the fraction of the old message that stays.
        schedule: 'parallel' updates every message in each iteration, 'residual' only those that would change most,
            which converges on more graphs.
        share: fraction of the messages that the residual schedule updates.
        noise: standard deviation of the initial messages; breaks ties, and makes restarts differ.
    """

    direction: ClassVar[Direction | None] = "estimate"

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        mode: Literal["sum", "max"] = "sum",
        damping: Damping = 0.0,
        schedule: Literal["parallel", "residual"] = "parallel",
        share: Share = 0.25,
        noise: NonNegative = 1e-3,
    ) -> None:
        super().__init__(graph, seed, start)
        self.mode, self.damping, self.schedule, self.share = mode, damping, schedule, share
        parts = [_split(group) for group in graph.couplings]
        self._groups, self._parts = [part for some in parts for part in some], [len(some) for some in parts]
        self._hard = graph.hard
        possible = possible_labels(graph)
        self._unary = graph.unary().masked_fill(~possible, -math.inf)
        self._prior = self._unary
        everything = bool(possible.all())
        self._set_weights()
        self._exponentials: dict[int, tuple[Tensor, Tensor]] = {}
        self._keep = graph.dtype.itemsize * graph.stored_entries <= KEPT * free_memory()
        self._out: list[list[Tensor | None]] = []  # for each group and axis, which labels are impossible
        self._messages: list[list[Tensor]] = []
        for group in self._groups:
            outs = [None if everything else ~group.gather(possible, axis) for axis in range(len(group.index))]
            drawn = [graph.draw(index.shape, self.generator).mul_(noise) for index in group.index]
            self._out.append(outs)
            self._messages.append([_without(message, out, 0.0) for message, out in zip(drawn, outs, strict=True)])
        if start is None:
            self._beliefs = self._sum_messages()
        else:
            self._beliefs = start.clamp(min=MIN_START_PROBABILITY).log().masked_fill(~possible, -math.inf)

    def step(self) -> float:
        updates = []
        for g in range(len(self._groups)):
            if self.out_of_time and g:
                return math.inf
            updates.append(self._updates(g))
        residuals = [
            [self._change(new, old) for new, old in zip(news, olds, strict=True)]
            for news, olds in zip(updates, self._messages, strict=True)
        ]
        largest = max((r.max().item() for rs in residuals for r in rs if r.numel()), default=0.0)
        threshold = self._threshold(residuals) if self.schedule == "residual" else 0.0
        for g, news in enumerate(updates):
            for axis, new in enumerate(news):
                old = self._messages[g][axis]
                if self.damping:
                    new.lerp_(old, self.damping)
                if threshold:
                    new = torch.where(residuals[g][axis] >= threshold, new, old)
                self._messages[g][axis] = new
        self._beliefs = self._sum_messages()
        return largest

    def marginals(self) -> Tensor:
        return self.graph.softmax(self._beliefs)

    @property
    def messages(self) -> list[list[Tensor]]:
        """The messages to the variables of each axis of each group of `graph.couplings`.

        They are log-potentials (c_axis, F), 0 at their largest.

        Set them for a warm start, from another run or a field with other tables, or to inject what else is known.
        """
        parts = iter(self._messages)
        taken = [[next(parts) for _ in range(count)] for count in self._parts]
        return [[torch.cat(axes, -1) for axes in zip(*some, strict=True)] for some in taken]

    @messages.setter
    def messages(self, given: Sequence[Sequence[Tensor]]) -> None:
        expected = [[tuple(index.shape) for index in group.index] for group in self.graph.couplings]
        shapes = [[tuple(message.shape) for message in group] for group in given]
        if shapes != expected:
            raise BadInput(f"messages of shapes {shapes}, expected {expected}: an axis of each group of couplings")
        begin = {id(group): 0 for group in given}
        wholes = [group for group, count in zip(given, self._parts, strict=True) for _ in range(count)]
        for g, whole in enumerate(wholes):
            end = begin[id(whole)] + len(self._groups[g])
            for axis, message in enumerate(whole):
                self._messages[g][axis] = message[:, begin[id(whole)] : end].clone()
            begin[id(whole)] = end
        self._beliefs = self._sum_messages()

    def observe(self, evidence: Evidence) -> None:
        """Take evidence, labels or likelihoods, in the place of any before; messages stay, so the next run is short."""
        soft, labels = self.graph.observe(evidence)
        self._unary = soft.unary() if soft is not self.graph else self._prior.clone()
        self._unary.masked_fill_(torch.isneginf(self._prior), -math.inf)
        for v, label in labels.items():
            places = self.graph.index(torch.tensor([v], device=self.graph.device))[:, 0]
            kept = self._unary[places[label]].clone()
            self._unary[places] = -math.inf
            self._unary[places[label]] = kept
        self._beliefs = self._sum_messages()

    def log_z(self) -> float | None:
        """Return the Bethe free energy with the sign changed: what belief propagation maximises."""
        if self.mode == "max":
            return None
        u = self.marginals()
        counts = torch.ones_like(u)  # 1 - sum of w, for every (variable, label)
        total = _mean(u, self._unary) + self.graph.constant
        for g, group in enumerate(self._groups):
            incoming = self._incoming(g)
            logs = [out + own for out, own in zip(self._outgoing(g, incoming), incoming, strict=True)]
            top = logs[0].logsumexp(0)
            for axis, message in enumerate(incoming):
                group.scatter(counts, axis, -torch.broadcast_to(self._w[g], message.shape))
                top = top - _mean(logs[axis].softmax(0), message, 0)
            total = total + (self._w[g] * top).sum()
        return (total + (counts * torch.special.entr(u)).sum()).item()

    def factor_marginals(self) -> list[Tensor]:
        joints = [self._joint(g, group.tables, self._incoming(g)) for g, group in enumerate(self._groups)]
        parts = iter([joint.flatten(0, -2).softmax(0).view(joint.shape) for joint in joints])
        couplings = iter([torch.cat([next(parts) for _ in range(count)], -1) for count in self._parts])
        u = self.marginals()
        return [group.gather(u, 0) if len(group.index) == 1 else next(couplings) for group in self.graph.groups]

    def _set_weights(self) -> None:
        self._w: list[Tensor] = [self._unary.new_ones(())] * len(self._groups)  # w_a: a number, or (F,)

    def _sum_messages(self) -> Tensor:
        beliefs = self._unary.clone()
        for group, messages, w in zip(self._groups, self._messages, self._w, strict=True):
            for axis, message in enumerate(messages):
                group.scatter(beliefs, axis, message if w.dim() == 0 else w * message)
        return beliefs

    def _incoming(self, g: int) -> list[Tensor]:
        """Return the messages from the variables of each axis to the factors, (c_axis, F) each."""
        group = self._groups[g]
        return [group.gather(self._beliefs, axis).sub_(message) for axis, message in enumerate(self._messages[g])]

    def _joint(self, g: int, tables: Tensor, incoming: list[Tensor], axes: list[int] | None = None) -> Tensor:
        """Return log μ_a from the messages of some axes, by default all."""
        joint = tables if self._w[g].dim() == 0 else tables / self._w[g]
        for axis in range(len(incoming)) if axes is None else axes:
            joint = joint + along(incoming[axis], axis, tables.dim())
        return joint

    def _updates(self, g: int) -> list[Tensor]:
        updates = []
        for new, out in zip(self._outgoing(g, self._incoming(g)), self._out[g], strict=True):
            new = _without(new, out, -math.inf)
            updates.append(_without(new.sub_(new.amax(0)), out, 0.0))
        return updates

    def _outgoing(self, g: int, incoming: list[Tensor]) -> list[Tensor]:
        """Return for each axis the log of the sum over all labels of the others, or the maximum: (c_axis, F) each."""
        axes, found = range(len(incoming)), []
        if self.mode == "max":
            return [self._largest(g, axis, incoming) for axis in axes]
        tops = [message.amax(0) for message in incoming]
        weights = [(message - top).exp_() for message, top in zip(incoming, tops, strict=True)]
        table, height = self._exponential(g)
        for axis in axes:
            total, others = table, [a for a in axes if a != axis]
            for other in reversed(others):
                total = contract(total, other, weights[other], False)
            low = total < UNDERFLOW * torch.finfo(total.dtype).tiny
            if (out := self._out[g][axis]) is not None:
                low &= ~out
            new = total.log_().add_(height)
            for other in others:
                new.add_(tops[other])
            if low.any():
                some = low.any(0).nonzero()[:, 0]
                tables = pick(self._groups[g].tables, some) / (self._w[g][some] if self._w[g].dim() else 1)
                joint = sum((along(incoming[a][:, some], a, table.dim()) for a in others), tables)
                new[:, some] = joint.logsumexp(others)
            found.append(new)
        return found

    def _exponential(self, g: int) -> tuple[Tensor, Tensor]:
        """Return exp(θ_a / w_a - top), one for all factors that share it, and the top of each."""
        if g in self._exponentials:
            return self._exponentials[g]
        group, w = self._groups[g], self._w[g]
        tables = group.tables / w if w.dim() else group.stored
        top = tables.flatten(0, -2).amax(0)
        found = (tables - top).exp_(), top
        if self._keep and not (w.dim() and is_shared(group.tables)):
            self._exponentials[g] = found
        return found

    def _largest(self, g: int, axis: int, incoming: list[Tensor]) -> Tensor:
        """Return the maximum over the labels of all other axes: (c_axis, F)."""
        tables, others = self._groups[g].tables, [a for a in range(len(incoming)) if a != axis]
        if len(others) > 1:
            return self._joint(g, tables, incoming, others).amax(others)
        message = incoming[others[0]]
        total = tables.select(others[0], 0) + message[0]
        for label in range(1, len(message)):
            torch.maximum(total, tables.select(others[0], label) + message[label], out=total)
        return total

    def _change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return how far each message moved, (F,), or the largest of it for the parallel schedule."""
        if self._hard:
            new, old = new.clamp(min=MIN_LOG_MESSAGE), old.clamp(min=MIN_LOG_MESSAGE)
        return torch.linalg.vector_norm(new - old, math.inf, 0 if self.schedule == "residual" else None)

    def _threshold(self, residuals: list[list[Tensor]]) -> float:
        """Return the residual above which messages are updated."""
        every = torch.cat([self._unary.new_zeros(0), *(r for rs in residuals for r in rs)])
        return every.topk(max(1, round(self.share * len(every)))).values[-1].item() if len(every) else 0.0


@configurable(supplied=["graph", "seed", "start"])
class TreeReweighted(BeliefPropagation):
    """Tree-reweighted belief propagation (after Wainwright et al., 2005): an upper bound on log Z at any messages."""

    direction = "upper bound"

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        damping: Damping = 0.5,
        noise: NonNegative = 1e-3,
    ) -> None:
        super().__init__(graph.merged(), seed, start, "sum", damping, noise=noise)
        self._given = graph
        self._best = math.inf

    def log_z(self) -> float:
        """Return the lowest bound so far."""
        beliefs, rest = self._beliefs, torch.ones_like(self._beliefs)  # rest: w_i, for every (variable, label)
        left = torch.where(torch.isneginf(beliefs), 0, beliefs)
        terms = left.clone()
        for g, group in enumerate(self._groups):
            incoming = self._incoming(g)
            logs = self._outgoing(g, incoming)
            for axis, message in enumerate(incoming):
                w = torch.broadcast_to(self._w[g], message.shape)
                last = self._last[g] == axis
                group.scatter(terms, axis, -w * group.gather(left, axis))
                group.scatter(rest, axis, torch.where(last, 0, -w))
                if last.any():
                    own = (logs[axis] + message)[:, last]
                    terms.index_add_(0, group.index[axis][:, last].reshape(-1), (w[:, last] * own).reshape(-1))
        terms = torch.where(torch.isneginf(beliefs), -math.inf, terms)
        total = self.graph.constant
        for c in self.graph.by_cardinality:
            weight, planes = c.planes(rest)[0], c.planes(terms)
            top, safe = planes.amax(0), weight.clamp(min=ZERO_WEIGHT)
            soft = torch.where(weight > ZERO_WEIGHT, safe * ((planes - top) / safe).logsumexp(0), 0)
            total += (top + soft).sum().item()
        self._best = min(self._best, total)
        return self._best

    def factor_marginals(self) -> list[Tensor]:
        """Return the marginals of the given graph's factors.

        Each factor has the marginals of the merged factor that it is a part of, with its own order of variables.
        """
        place: dict[tuple[int, ...], Tensor] = {}
        for shares, group in zip(super().factor_marginals(), self.graph.groups, strict=True):
            place |= zip(map(tuple, group.scopes.tolist()), shares.unbind(-1), strict=True)
        found = []
        for group in self._given.groups:
            scopes = group.scopes.tolist()
            ranks = group.scopes.argsort(1).argsort(1).tolist()  # of each axis in the merged factor
            own = [place[tuple(sorted(scope))].permute(rank) for scope, rank in zip(scopes, ranks, strict=True)]
            found.append(torch.stack(own, -1))
        return found

    def _set_weights(self) -> None:
        rank = _order(self.graph, self._groups)
        self._last = [rank[group.scopes].argmax(1) for group in self._groups]
        count = torch.zeros(len(self.graph), dtype=self.graph.dtype, device=self.graph.device)
        inside = [torch.arange(group.scopes.shape[1], device=rank.device) for group in self._groups]
        inside = [axes != last[:, None] for axes, last in zip(inside, self._last, strict=True)]
        for group, first in zip(self._groups, inside, strict=True):
            count.index_add_(0, group.scopes.reshape(-1), first.reshape(-1).to(count.dtype))
        self._w = [
            torch.where(first, 1 / count[group.scopes].clamp(min=1), 1).amin(1)
            for group, first in zip(self._groups, inside, strict=True)
        ]


def _split(group: Group) -> list[Group]:
    """Split a group into parts that fit into a cache; the clock is checked between them."""
    size = max(1, ENTRIES_PER_PART // math.prod(group.shape))
    return [group.part(slice(begin, begin + size)) for begin in range(0, len(group), size)]


def _without(message: Tensor, out: Tensor | None, value: float) -> Tensor:
    """Set a message to a value at impossible labels."""
    return message if out is None else message.masked_fill_(out, value)


def _mean(p: Tensor, values: Tensor, dim: int | None = None) -> Tensor:
    """Return the sum of p times values, with 0 times -inf being 0."""
    product = torch.where(p > 0, p * values, 0)
    return product.sum() if dim is None else product.sum(dim)


def _order(graph: FactorGraph, groups: list[Group]) -> Tensor:
    """Rank the variables: next is the one that is in the fewest factors with another variable left."""
    near: list[list[int]] = [[] for _ in range(len(graph))]
    scopes = [scope for group in groups for scope in group.scopes.tolist()]
    for f, scope in enumerate(scopes):
        for v in scope:
            near[v].append(f)
    count, left = [len(factors) for factors in near], [len(scope) for scope in scopes]
    heap = [(many, v) for v, many in enumerate(count)]
    heapq.heapify(heap)
    rank = [-1] * len(graph)
    done = 0
    while heap:
        many, v = heapq.heappop(heap)
        if rank[v] >= 0 or many != count[v]:
            continue
        rank[v], done = done, done + 1
        for f in near[v]:
            left[f] -= 1
            if left[f] == 1:  # its last variable is not counted there
                w = next(w for w in scopes[f] if rank[w] < 0)
                count[w] -= 1
                heapq.heappush(heap, (count[w], w))
    return torch.tensor(rank, device=graph.device)
