"""Coordinate descent, a colour at a time: sequential mean-field, Gibbs sampling and ICM.

Variables of one colour share no factor, so to update them together is the same as one after the other.
"""

import math
from abc import abstractmethod
from itertools import combinations

import torch
from torch import Tensor

from mrfquant.config.settings import Whole, configurable
from mrfquant.mrf.dual import feasible
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import Group, field
from mrfquant.mrf.solver import FieldSolver
from mrfquant.schedules import Constant, Schedule


class CoordinateDescent(FieldSolver):
    """Sweeps over the colours; `answer` of a subclass updates variables from their fields.

    Args:
        soft: the graph that fields are computed on; by default one without hard constraints.
    """

    def __init__(
        self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, soft: FactorGraph | None = None
    ) -> None:
        super().__init__(graph, seed, start)
        self._soft = soft or graph.without_hard_constraints()
        self._unary = self._soft.unary()
        self._sweep = [self._plan(chosen) for chosen in _colours(graph, self.generator)]
        self._u = self._initial() if start is None else start.clone()
        self._fields = torch.zeros_like(self._u)

    def step(self) -> float:
        residual = self._u.new_zeros(())
        for parts, places in self._sweep:
            if self.out_of_time and residual:
                return math.inf  # the sweep is not complete
            for index in places:
                self._fields[index] = self._unary[index]
            for group, axis in parts:
                group.scatter(self._fields, axis, field(group, axis, self._u))
            for index in places:
                old = self._u[index]
                new = self.answer(self._fields[index], old)
                residual = torch.maximum(residual, (new - old).abs().max())
                self._u[index] = new
        return residual.item()

    @abstractmethod
    def answer(self, fields: Tensor, u: Tensor) -> Tensor:
        """Return the new u of some variables, from their fields and their old u: (c, m) each."""

    def marginals(self) -> Tensor:
        return self._u

    def _initial(self) -> Tensor:
        """Draw a random labelling."""
        return self.graph.one_hot(self.graph.random_labels(self.generator))

    def _plan(self, chosen: Tensor) -> tuple[list[tuple[Group, int]], list[Tensor]]:
        """Return the factors of a colour's variables (a mask) with their axis, and the variables' places.

        Places are grouped by cardinality.
        """
        parts = []
        for group in self._soft.couplings:
            for axis in range(len(group.index)):
                found = chosen[group.scopes[:, axis]].nonzero()[:, 0]
                if len(found):
                    parts.append((group.part(found), axis))
        kinds = [c.variables[chosen[c.variables]] for c in self.graph.by_cardinality]
        return parts, [self.graph.index(variables) for variables in kinds if len(variables)]


@configurable(supplied=["graph", "seed", "start"])
class SequentialMeanField(CoordinateDescent):
    """Mean-field by coordinate ascent: -log Z <= free energy, which no sweep at beta = 1 increases.

    With hard constraints it starts at a labelling that they allow, if one is found: from there on u never allows what
    is forbidden, and the bound is finite.

    Args:
        beta: the inverse temperature; if it grows, it anneals towards a labelling. The bound holds for any u.
    """

    direction = "lower bound"

    def __init__(
        self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, beta: Schedule | None = None
    ) -> None:
        self.schedule = beta or Constant(1.0)
        self.iteration = 0
        allowed, start = _allowed(graph, seed, start)
        super().__init__(graph, seed, start, graph if allowed else None)

    def step(self) -> float:
        self._beta = self.schedule(self.iteration, None)
        self.iteration += 1
        residual = super().step()
        annealing = self.schedule(self.iteration, None) != self._beta
        return max(residual, 1.0) if annealing else residual  # at rest only once beta is

    def answer(self, fields: Tensor, u: Tensor) -> Tensor:
        return (fields * self._beta).softmax(0)

    def log_z(self) -> float:
        return self.graph.factorised_bound(self._u)

    def _initial(self) -> Tensor:
        return self.graph.softmax(0.1 * self.graph.draw((self.graph.size,), self.generator))


@configurable(supplied=["graph", "seed", "start"])
class Gibbs(CoordinateDescent):
    """Gibbs sampling: each variable draws a label from p(x_i | the others) = softmax of its fields.

    The marginals are the fractions of the sweeps so far in which a variable had a label. With hard constraints the
    chain starts at a labelling that they allow, and may not reach all others.

    Args:
        burn_in: number of first sweeps that do not count.
    """

    samples = True

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, burn_in: Whole = 10) -> None:
        allowed, begin = _allowed(graph, seed, start)
        begin = None if begin is None else graph.one_hot(graph.argmax(begin))
        super().__init__(graph, seed, begin, graph if allowed else None)
        self.burn_in = burn_in
        self._sum, self._sweeps = self._u.clone(), 0

    def step(self) -> float:
        super().step()
        before, self._sweeps = self.marginals(), self._sweeps + 1
        if self._sweeps > self.burn_in + 1:
            self._sum += self._u
        else:
            self._sum = self._u.clone()
        return max((self.marginals() - before).abs().max().item(), 1 / self._sweeps)  # one sweep may change nothing

    def answer(self, fields: Tensor, u: Tensor) -> Tensor:
        draw = torch.rand(fields.shape, generator=self.generator, dtype=fields.dtype, device=fields.device)
        chosen = (fields - (-draw.log()).log()).argmax(0, keepdim=True)  # Gumbel's noise draws from the softmax
        return torch.zeros_like(u).scatter_(0, chosen, 1)

    def marginals(self) -> Tensor:
        return self._sum / max(1, self._sweeps - self.burn_in)

    def labels(self) -> Tensor:
        """Return the present sample."""
        return self.graph.argmax(self._u)


@configurable(supplied=["graph", "seed", "start"])
class ICM(CoordinateDescent):
    """Iterated conditional modes: each variable takes its best label given the others, until none changes."""

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        super().__init__(graph, seed, None if start is None else graph.one_hot(graph.argmax(start)))

    def answer(self, fields: Tensor, u: Tensor) -> Tensor:
        settled = (fields * u).sum(0) >= fields.amax(0)  # ties leave a variable where it is
        best = torch.zeros_like(u).scatter_(0, fields.argmax(0, keepdim=True), 1)
        return torch.where(settled, u, best)


def _allowed(graph: FactorGraph, seed: int, start: Tensor | None) -> tuple[bool, Tensor | None]:
    """Return whether there is a start that allows nothing forbidden, and the start: a labelling under constraints."""
    if not graph.hard:
        return True, start
    if start is not None:
        return graph.factorised_bound(start) > -math.inf, start
    labels = feasible(graph, seed)
    return (False, None) if labels is None else (True, graph.one_hot(labels))


def _colours(graph: FactorGraph, generator: torch.Generator) -> list[Tensor]:
    """Partition the variables into masks of variables without a common factor: independent sets, drawn as by Luby."""
    pairs = [g.scopes[:, [a, b]] for g in graph.couplings for a, b in combinations(range(g.scopes.shape[1]), 2)]
    edges = torch.cat([graph.cardinalities.new_empty((0, 2)), *pairs, *(pair.flip(1) for pair in pairs)])
    left = torch.ones(len(graph), dtype=torch.bool, device=graph.device)
    colours = []
    while left.any():
        colour, open_ = torch.zeros_like(left), left.clone()
        edges = edges[left[edges].all(1)]
        while open_.any():
            draw = torch.rand(len(graph), generator=generator, device=graph.device, dtype=torch.float64)
            draw = torch.where(open_, draw, -1.0)
            highest = torch.full_like(draw, -1.0).scatter_reduce_(0, edges[:, 0], draw[edges[:, 1]], "amax")
            won = open_ & (draw > highest)
            colour |= won
            open_ &= ~won
            open_[edges[won[edges[:, 0]], 1]] = False
        colours.append(colour)
        left &= ~colour
    return colours
