"""Loopy belief propagation and its tree-reweighted form: one update, two choices of counting numbers.

Both maximise   sum_a <θ_a, μ_a> + c_a H(μ_a)  +  sum_i <θ_i, μ_i> + (1 - sum_{a ∋ i} rho_ai) H(μ_i)

over locally consistent marginals of the factors a and the variables i. With messages m_ai from factors to variables,

    log μ_i = θ_i + sum_a rho_ai m_ai,    log μ_a = (θ_a + sum_i rho_ai (log μ_i - m_ai)) / c_a,

up to constants. Bethe: c = rho = 1. Tree-reweighted: rho are the shares of spanning trees in which an edge appears.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from mrfquant.config.settings import Check, Count, Damping, NonNegative, configurable
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import Group
from mrfquant.mrf.solver import Direction, Solver

# A message is 0 at its largest and never below this: what is forbidden stays at probability 0 (exp underflows), and no
# difference of two infinities arises. So log-potentials that differ by more count as forbidden, too.
FLOOR = {torch.float64: -1e4, torch.float32: -1e3}

Share = Annotated[float, Check(lambda v: 0 < v <= 1, "a number above 0 and up to 1")]


@configurable(supplied=["graph", "seed", "start"])
class BeliefPropagation(Solver):
    """Loopy belief propagation; exact on trees.

    Args:
        mode: 'sum' for marginals and the Bethe estimate of log Z, 'max' for the likeliest labelling.
        damping: the share of the old message that stays.
        schedule: 'parallel' updates every message in each iteration, 'residual' only those that would change most,
            which converges on more graphs.
        share: of the messages that the residual schedule updates.
        noise: standard deviation of the messages at the start; breaks ties, and makes restarts differ.
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
        self._floor = FLOOR.get(graph.dtype, -1e3)
        self._unary = graph.unary()
        for c in graph.by_cardinality:
            planes = c.planes(self._unary)
            planes.clamp_(min=planes.amax(0) + self._floor)
        self._groups = graph.couplings
        self._set_counting_numbers()
        self._messages = [[self._draw(index, noise) for index in group.index] for group in self._groups]
        self._beliefs = self._unary if start is None else start.log().clamp(min=self._floor)
        if start is None:
            self._beliefs = self._sum_messages()

    def step(self) -> float:
        updates = [self._updates(g) for g in range(len(self._groups))]
        residuals = [
            [(new - old).abs().amax(0) for new, old in zip(updates[g], self._messages[g], strict=True)]
            for g in range(len(self._groups))
        ]
        largest = max((r.max().item() for rs in residuals for r in rs if len(r)), default=0.0)
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

    def log_z(self) -> float | None:
        if self.mode == "max":
            return None
        u = self.marginals()
        counts = torch.ones_like(u)  # 1 - sum of rho, for every (variable, label)
        total = (u * self._unary).sum() + self.graph.constant
        for g, group in enumerate(self._groups):
            c, incoming = self._c[g], self._incoming(g)
            joint, weight = group.tables / c, u.new_zeros(())
            for axis, message in enumerate(incoming):
                weight = weight + _along(message, axis, joint.dim())
                group.scatter(counts, axis, -torch.broadcast_to(self._rho[g][axis], message.shape))
            joint = (joint + weight).flatten(0, -2)
            top = joint.logsumexp(0)
            total = total + (c * (top - ((joint - top).exp() * weight.flatten(0, -2)).sum(0))).sum()
        return (total + (counts * torch.special.entr(u)).sum()).item()

    def _set_counting_numbers(self) -> None:
        one = self._unary.new_ones(())
        self._c: list[Tensor] = [one for _ in self._groups]  # c_a: a number, or (F,)
        self._rho: list[list[Tensor]] = [[one for _ in group.index] for group in self._groups]

    def _sum_messages(self) -> Tensor:
        beliefs = self._unary.clone()
        for group, messages, rhos in zip(self._groups, self._messages, self._rho, strict=True):
            for axis, (message, rho) in enumerate(zip(messages, rhos, strict=True)):
                group.scatter(beliefs, axis, message if rho.dim() == 0 else rho * message)
        return beliefs

    def _incoming(self, g: int) -> list[Tensor]:
        """What the variables of each axis tell the factors, each (c_axis, F)."""
        group = self._groups[g]
        found = []
        for axis, message in enumerate(self._messages[g]):
            cavity = group.gather(self._beliefs, axis).sub_(message)
            share = self._rho[g][axis] / self._c[g]
            found.append(cavity if share.dim() == 0 else cavity.mul_(share))
        return found

    def _updates(self, g: int) -> list[Tensor]:
        group, incoming = self._groups[g], self._incoming(g)
        tables = group.tables if self._c[g].dim() == 0 else group.tables / self._c[g]
        updates = []
        for axis in range(len(incoming)):
            others = [a for a in range(len(incoming)) if a != axis]
            joint = tables
            for other in others:
                joint = joint + _along(incoming[other], other, tables.dim())
            new = joint.logsumexp(others) if self.mode == "sum" else joint.amax(others)
            share = self._rho[g][axis] / self._c[g]
            if share.dim():  # μ_a has to have the marginal μ_i: new + share (b - m) = b
                belief = group.gather(self._beliefs, axis)
                new = belief - (belief - new) / share
            updates.append(new.sub_(new.amax(0)).clamp_(min=self._floor))
        return updates

    def _threshold(self, residuals: list[list[Tensor]]) -> float:
        if not residuals:
            return 0.0
        every = torch.cat([r for rs in residuals for r in rs])
        count = max(1, round(self.share * len(every)))
        return every.topk(count).values[-1].item() if len(every) else 0.0

    def _draw(self, index: Tensor, noise: float) -> Tensor:
        drawn = torch.randn(index.shape, generator=self.generator, dtype=self.graph.dtype, device=self.graph.device)
        return drawn.mul_(noise)


@configurable(supplied=["graph", "seed", "start"])
class TreeReweighted(BeliefPropagation):
    """Tree-reweighted belief propagation (Wainwright et al., 2005): at its fixed point an upper bound on log Z.

    A factor of more than two variables counts as a node that is linked to each of them.

    Args:
        trees: how many spanning trees the shares are counted over, at least; more are drawn until every edge was used.
    """

    direction = "upper bound"

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        damping: Damping = 0.5,
        trees: Count = 50,
        noise: NonNegative = 1e-3,
    ) -> None:
        self.trees, self._seed = trees, seed
        super().__init__(graph.merged(), seed, start, "sum", damping, noise=noise)

    def _set_counting_numbers(self) -> None:
        links, nodes = _links(self.graph, self._groups)
        shares = iter(np.split(_appearance(links, nodes, self.trees, self._seed), np.cumsum([len(x) for x in links])))
        self._c, self._rho = [], []
        for group in self._groups:
            if len(group.index) == 2:
                rho = self._unary.new_tensor(next(shares))
                self._c.append(rho)
                self._rho.append([rho, rho])
            else:
                self._c.append(self._unary.new_ones(len(group)))
                self._rho.append([self._unary.new_tensor(next(shares)) for _ in group.index])


def _along(message: Tensor, axis: int, dims: int) -> Tensor:
    """A message (c_axis, F) in the shape of a group's tables, to be broadcast."""
    shape = [1] * dims
    shape[axis], shape[-1] = message.shape
    return message.view(shape)


def _links(graph: FactorGraph, groups: list[Group]) -> tuple[list[np.ndarray], int]:
    """The edges (E, 2) of each pairwise group and of each axis of the others, and the number of nodes."""
    links, nodes = [], len(graph)
    for group in groups:
        scopes = group.scopes.cpu().numpy()
        if scopes.shape[1] == 2:
            links.append(scopes)
            continue
        own = np.arange(nodes, nodes + len(scopes))
        nodes += len(scopes)
        links += [np.stack([scopes[:, axis], own], 1) for axis in range(scopes.shape[1])]
    return links, nodes


def _appearance(links: list[np.ndarray], nodes: int, trees: int, seed: int) -> np.ndarray:
    """The share of spanning forests that contain each edge; forests are drawn to prefer edges seldom used so far."""
    edges = np.sort(np.concatenate(links) if links else np.zeros((0, 2), int), 1)
    keys = edges[:, 0] * nodes + edges[:, 1]
    order = np.argsort(keys)
    used, drawn, random = np.zeros(len(edges)), 0, np.random.default_rng(seed)
    while len(edges) and (drawn < trees or not used.all()):
        weights = 1 + used + random.random(len(edges))
        tree = minimum_spanning_tree(csr_array((weights, edges.T), (nodes, nodes))).tocoo()
        low, high = np.minimum(tree.row, tree.col), np.maximum(tree.row, tree.col)
        used[order[np.searchsorted(keys, low.astype(np.int64) * nodes + high, sorter=order)]] += 1
        drawn += 1
    return used / max(1, drawn)
