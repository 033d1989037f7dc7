"""Markov random fields with explicit tables: p(x) = exp(score(x)) / Z, where the score is a sum of factors.

Everything is grouped so that no Python object stands for a single factor: factors of one shape share one tensor, and
so do the variables of one cardinality. A function of (variable, label), such as u or the unary terms, is a *flat*
vector: for each cardinality c in increasing order the planes (c, m) of its m variables, as in `mrfquant.projections`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.mrf.contradiction import Contradiction
from mrfquant.mrf.groups import (
    Cardinality,
    Group,
    by_factor,
    contract,
    field,
    is_shared,
    map_tables,
    pick,
    share,
    stored,
    take,
)

NEGLIGIBLE = 1e-30  # smaller probabilities are set to 0 before u is checked against hard constraints

Factor = tuple[Sequence[int], Tensor | Sequence]  # the variables, and the logarithms of the factor's values
Evidence = Mapping[Any, Any]  # of some variables: a label, or as soft evidence the likelihoods of all labels


class FactorGraph:
    """Variables with c_0, c_1, ... labels and factors over them.

    Args:
        cardinalities: the number of labels of each variable.
        factors: pairs of variables and log-potentials (shape: their cardinalities); -inf forbids, an empty scope is a
            constant factor.
        groups: many factors of one shape at once: pairs of scopes (F, k) and log-potentials (c_1, ..., c_k, F); one
            table for all, expanded, or large and equal ones are stored once.
        constant: added to the score of every labelling.
        dtype: dtype of the log-potentials.
        device: device of the tensors.
        names: names of the variables, by which evidence may call them; numbers do in any case.

    Attributes:
        groups: factors of one variable or more, by shape; those that share a table are a group by themselves.
        by_cardinality: the variables, by cardinality.
        size: the length of a flat vector.
        constant: the sum of the constant factors.
        learned_constant: 0, with the gradient of the constant factors.
    """

    def __init__(
        self,
        cardinalities: Sequence[int] | Tensor,
        factors: Iterable[Factor] = (),
        groups: Iterable[tuple[Tensor, Tensor]] = (),
        constant: float = 0.0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
        names: Iterable[Hashable] = (),
    ) -> None:
        self.compiled: Any = None  # its arrays, once `arrays_of` has made them
        self._names = {name: v for v, name in enumerate(names)}
        self.cardinalities = torch.as_tensor(cardinalities, dtype=torch.int64, device=device)
        if self.cardinalities.dim() != 1 or (self.cardinalities < 1).any():
            raise BadInput("the cardinalities of the variables must be a list of whole numbers of at least 1")
        self.dtype, self.device = dtype, self.cardinalities.device
        self.by_cardinality: list[Cardinality] = []
        n = len(self.cardinalities)
        self._place = torch.zeros(n, dtype=torch.int64, device=self.device)  # of label 0 in a flat vector
        self._stride = torch.zeros_like(self._place)  # from one label to the next
        self.size = 0
        for labels in self.cardinalities.unique().tolist():
            variables = (self.cardinalities == labels).nonzero()[:, 0]
            self.by_cardinality.append(Cardinality(labels, variables, self.size))
            self._place[variables] = self.size + torch.arange(len(variables), device=self.device)
            self._stride[variables] = len(variables)
            self.size += labels * len(variables)
        self.constant = float(constant)
        self.learned_constant = torch.zeros((), dtype=dtype, device=self.device)
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        alone: list[tuple[tuple[int, ...], list[tuple[Tensor, Tensor]]]] = []
        for scopes, tables in (*_stacked(factors), *groups):
            scopes = torch.as_tensor(scopes, dtype=torch.int64, device=self.device)
            if scopes.shape[1] == 0:
                sum_ = torch.as_tensor(tables, dtype=dtype, device=self.device).sum()
                self.constant += sum_.item()
                if sum_.requires_grad:
                    self.learned_constant = self.learned_constant + (sum_ - sum_.detach())
            elif len(scopes):
                tables = share(map_tables(lambda given: given.to(self.device, dtype), torch.as_tensor(tables)))
                self._check_factors(scopes, tables)
                if is_shared(tables):
                    alone.append((tuple(tables.shape[:-1]), [(scopes, tables)]))
                else:
                    by_shape.setdefault(tuple(tables.shape[:-1]), []).append((scopes, tables))
        if math.isnan(self.constant) or self.constant == math.inf:
            raise BadInput("a constant factor is not a number or infinite")
        if self.constant == -math.inf:
            raise Contradiction("a constant factor is 0: no labelling has a probability above 0")
        parted = sorted([*by_shape.items(), *alone], key=lambda p: (len(p[0]), p[0]))
        self.groups = [self._group(parts) for _, parts in parted]

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(self.cardinalities)

    @property
    def num_factors(self) -> int:
        """The number of factors, constants left out."""
        return sum(map(len, self.groups))

    @property
    def couplings(self) -> list[Group]:
        """Factors of two variables or more, by shape."""
        return [group for group in self.groups if len(group.index) > 1]

    @property
    def hard(self) -> bool:
        """Whether any factor forbids anything."""
        return any(group.hard for group in self.groups)

    @property
    def table_entries(self) -> int:
        """The number of entries of all factors' tables, each counted."""
        return sum(group.tables.numel() for group in self.groups)

    @property
    def stored_entries(self) -> int:
        """The number of entries of the tables of couplings in memory: those that are shared count once."""
        return sum(group.stored.numel() for group in self.couplings)

    @property
    def widest(self) -> float:
        """The largest difference that a factor makes between labels that it allows; 1 if none makes any."""
        largest = 0.0
        for group in self.groups:
            tables = group.stored.flatten(0, -2)
            lowest = tables.nan_to_num(neginf=math.inf).amin(0)
            largest = max(largest, (tables.amax(0) - lowest).max().item())
        return largest or 1.0

    def factors(self) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the variables and the table of each factor."""
        for group in self.groups:
            tables = by_factor(group.stored).view(-1, *group.shape).expand(len(group), *group.shape)
            yield from zip(group.scopes.tolist(), tables, strict=True)

    def neighbours(self) -> dict[int, set[int]]:
        """Return the variables that share a factor with each variable, without those of one label."""
        found: dict[int, set[int]] = {v: set() for v, c in enumerate(self.cardinalities.tolist()) if c > 1}
        pairs = [g.scopes[:, [a, b]] for g in self.couplings for a, b in permutations(range(g.scopes.shape[1]), 2)]
        if pairs:
            every = torch.cat(pairs)
            first, second = every[(self.cardinalities[every] > 1).all(1)].unique(dim=0).t()
            names, counts = first.unique_consecutive(return_counts=True)
            parts = second.split(counts.tolist())
            found |= {v: set(near.tolist()) for v, near in zip(names.tolist(), parts, strict=True)}
        return found

    def index(self, variables: Tensor) -> Tensor:
        """Return the places (c, F) of variables (F,) of the same cardinality c in a flat vector."""
        labels = int(self.cardinalities[variables[0]])
        steps = torch.arange(labels, device=self.device)[:, None]
        return self._place[variables] + steps * self._stride[variables]

    # Labellings: int64 (..., n)

    def score(self, labels: Tensor) -> Tensor:
        """Return the sum of all log-potentials: (...). -inf if the labelling is forbidden."""
        start = torch.full(labels.shape[:-1], self.constant, **self._kind) + self.learned_constant
        return sum(self._scores(labels), start)

    def energy(self, labels: Tensor) -> Tensor:
        """Return the negative score."""
        return -self.score(labels)

    def one_hot(self, labels: Tensor) -> Tensor:
        """Return the flat u of a labelling (n,)."""
        flat = torch.zeros(self.size, **self._kind)
        flat[self._place + labels * self._stride] = 1
        return flat

    def random_labels(self, generator: torch.Generator) -> Tensor:
        """Draw a labelling (n,) uniformly."""
        drawn = torch.rand(len(self), generator=generator, device=self.device)
        return (drawn * self.cardinalities).long().clamp_(max=self.cardinalities - 1)

    # Flat vectors

    def unary(self) -> Tensor:
        """Return the sum of the factors of one variable, flat."""
        flat = torch.zeros(self.size, **self._kind)
        for group in self.groups:
            if len(group.index) == 1:
                group.scatter(flat, 0, group.tables)
        return flat

    def uniform(self) -> Tensor:
        """Return the uniform u."""
        flat = torch.empty(self.size, **self._kind)
        for c in self.by_cardinality:
            c.planes(flat).fill_(1 / c.labels)
        return flat

    def draw(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw standard normal noise, in the graph's dtype."""
        return torch.randn(shape, generator=generator, **self._kind)

    def softmax(self, flat: Tensor) -> Tensor:
        """Return u of every variable from its log-weights."""
        out = torch.empty_like(flat)
        for c in self.by_cardinality:
            c.planes(out).copy_(c.planes(flat).softmax(0))
        return out

    def argmax(self, flat: Tensor) -> Tensor:
        """Return the label of every variable with the largest entry, the first of equals: int64 (n,)."""
        labels = torch.empty_like(self.cardinalities)
        for c in self.by_cardinality:
            labels[c.variables] = c.planes(flat).argmax(0)
        return labels

    def entropy(self, u: Tensor) -> Tensor:
        """Return the entropy of the factorised u in nats."""
        return torch.special.entr(u).sum()

    def per_variable(self, flat: Tensor) -> list[list[float]]:
        """Return the entries of each variable as plain numbers."""
        rows: list[list[float]] = [[]] * len(self)
        for c in self.by_cardinality:
            for v, row in zip(c.variables.tolist(), c.planes(flat).t().tolist(), strict=True):
                rows[v] = row
        return rows

    def flat(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Return the flat vector of such rows, the inverse of `per_variable`."""
        flat = torch.empty(self.size, **self._kind)
        for c in self.by_cardinality:
            chosen = [rows[v] for v in c.variables.tolist()]
            if any(len(row) != c.labels for row in chosen):
                raise BadInput(f"a variable of {c.labels} labels was given another number of entries")
            c.planes(flat).copy_(torch.tensor(chosen, **self._kind).t())
        return flat

    def expected_score(self, u: Tensor) -> Tensor:
        """Return the expectation of the score under the factorised u; -inf if u allows what is forbidden."""
        total = torch.tensor(self.constant, **self._kind)
        for group in self.groups:
            mean = group.tables
            for axis in reversed(range(len(group.index))):
                mean = contract(mean, axis, group.gather(u, axis), group.hard)
            total = total + mean.sum()
        return total

    def fields(self, u: Tensor) -> Tensor:
        """Return the gradient of `expected_score`: the expected score of the factors of each label, flat."""
        flat = torch.zeros_like(u)
        for group in self.groups:
            for axis in range(len(group.index)):
                group.scatter(flat, axis, field(group, axis, u))
        return flat

    def factorised_bound(self, u: Tensor) -> float:
        """Return E[score] + H(u), at most log Z for every u (Gibbs' inequality); -inf if u allows what is forbidden."""
        u = torch.where(u < NEGLIGIBLE, 0, u)
        for c in self.by_cardinality:
            planes = c.planes(u)
            planes.div_(planes.sum(0))
        return (self.expected_score(u) + self.entropy(u)).item()

    # Other graphs

    def without_hard_constraints(self, penalty: float | None = None) -> FactorGraph:
        """Return the graph with finite penalties in the place of forbidden labels.

        A log-potential of -inf becomes the lowest one of its factor, less a penalty; by default the penalty is so large
        that every allowed labelling is better than all forbidden ones.
        """
        if not self.hard:
            return self
        lowest, ranges = [], 0.0
        for group in self.groups:
            axes = tuple(range(len(group.index)))
            low = group.stored.nan_to_num(posinf=math.inf, neginf=math.inf).amin(axes, keepdim=True)
            ranges += (group.tables.amax(axes) - low).sum().item()
            lowest.append(low)
        drop = 1 + ranges if penalty is None else penalty
        groups = []
        for group, low in zip(self.groups, lowest, strict=True):
            groups.append((group.scopes, map_tables(partial(_replace_hard, value=low - drop), group.tables)))
        return FactorGraph(self.cardinalities, groups=groups, constant=self.constant, dtype=self.dtype)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> FactorGraph:
        """Return a copy of another dtype or on another device."""
        device = device or self.device
        groups = [(group.scopes.to(device), group.tables) for group in self.groups]
        return FactorGraph(self.cardinalities.to(device), (), groups, self.constant, dtype or self.dtype, device)

    def number(self, variable: Hashable) -> int:
        """Return the number of a variable that is given by its name or by its number."""
        if variable in self._names:
            return self._names[variable]
        try:
            number = operator.index(variable)  # type: ignore[arg-type]
        except TypeError:
            raise BadInput(f"evidence on {variable!r}: no variable has this name") from None
        if not 0 <= number < len(self):
            raise BadInput(f"evidence on variable {number}: there are the variables 0 to {len(self) - 1}")
        return number

    def observe(self, evidence: Evidence) -> tuple[FactorGraph, dict[int, int]]:
        """Return the graph with soft evidence as further factors, and the observed labels by the variable's number."""
        labels: dict[int, int] = {}
        soft: list[Factor] = []
        for variable, seen in evidence.items():
            v = self.number(variable)
            count = int(self.cardinalities[v])
            if isinstance(seen, Sequence | Tensor | np.ndarray) and np.ndim(seen) == 1:
                likelihood = torch.as_tensor(seen, dtype=torch.float64)
                if len(likelihood) != count or not ((likelihood >= 0) & likelihood.isfinite()).all():
                    told = f"evidence gives variable {v} the likelihoods {likelihood.tolist()}"
                    raise BadInput(f"{told}, expected {count} numbers of at least 0, one for each label")
                soft.append(([v], likelihood.log()))
                continue
            labels[v] = operator.index(seen)
            if not 0 <= labels[v] < count:
                raise BadInput(f"evidence gives variable {v} the label {seen}: it has the labels 0 to {count - 1}")
        if not soft:
            return self, labels
        groups = [(group.scopes, group.tables) for group in self.groups]
        return FactorGraph(self.cardinalities, soft, groups, self.constant, **self._kind), labels

    def condition(self, evidence: Evidence) -> tuple[FactorGraph, Tensor]:
        """Return the graph of the variables that have no label in the evidence, and their numbers in this graph.

        Args:
            evidence: for each observed variable its label, or, as soft evidence, the likelihood of each label.
        """
        whole, observed = self.observe(evidence)
        if whole is not self:
            return whole.condition(observed)
        if not observed:
            return self, torch.arange(len(self), device=self.device)
        labels = torch.full_like(self.cardinalities, -1)
        if observed:
            labels[list(observed)] = torch.tensor(list(observed.values()), device=self.device)
        kept = (labels < 0).nonzero()[:, 0]
        number = torch.full_like(labels, -1)
        number[kept] = torch.arange(len(kept), device=self.device)
        parts, constant = [], self.constant
        for group in self.groups:
            patterns, which = (labels[group.scopes] >= 0).unique(dim=0, return_inverse=True)
            for p, pattern in enumerate(patterns.tolist()):
                chosen = (which == p).nonzero()[:, 0]
                scopes, tables = group.scopes[chosen], pick(group.tables, chosen)
                for axis in reversed([a for a, seen in enumerate(pattern) if seen]):
                    tables = take(tables, axis, labels[scopes[:, axis]])
                free = [a for a, seen in enumerate(pattern) if not seen]
                best = map_tables(lambda given: given.amax(tuple(range(given.dim() - 1))), tables) if free else tables
                if torch.isneginf(best).any():
                    scope = scopes[torch.isneginf(best).nonzero()[0, 0]].tolist()
                    raise Contradiction(
                        f"the evidence contradicts the factor over variables {scope}: it leaves it 0 everywhere"
                    )
                if free:
                    parts.append((number[scopes[:, free]], tables))
                else:
                    constant += tables.sum().item()
        return FactorGraph(self.cardinalities[kept], groups=parts, constant=constant, **self._kind), kept

    def merged(self) -> FactorGraph:
        """Return the graph with one factor for each set of variables that has any."""
        sets = [tuple(sorted(scope)) for group in self.groups for scope in group.scopes.tolist()]
        if len(set(sets)) == len(sets):
            return self
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for group in self.groups:
            orders, which = group.scopes.argsort(1).unique(dim=0, return_inverse=True)
            for p, order in enumerate(orders.tolist()):
                chosen = (which == p).nonzero()[:, 0]
                tables = group.tables[..., chosen].permute(*order, -1)
                by_shape.setdefault(tuple(tables.shape[:-1]), []).append((group.scopes[chosen][:, order], tables))
        parts = []
        for shape, found in by_shape.items():
            scopes, which = torch.cat([s for s, _ in found]).unique(dim=0, return_inverse=True)
            tables = torch.zeros(*shape, len(scopes), **self._kind)
            parts.append((scopes, tables.index_add_(-1, which, torch.cat([t for _, t in found], -1))))
        return FactorGraph(self.cardinalities, groups=parts, constant=self.constant, **self._kind)

    @property
    def _kind(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.device}

    def _group(self, parts: list[tuple[Tensor, Tensor]]) -> Group:
        scopes = torch.cat([s for s, _ in parts])
        tables = parts[0][1] if len(parts) == 1 else torch.cat([t for _, t in parts], -1)
        index = tuple(self.index(scopes[:, a]) for a in range(scopes.shape[1]))
        return Group(scopes, tables, index, bool(torch.isneginf(stored(tables)).any()))

    def _scores(self, labels: Tensor) -> Iterator[Tensor]:
        for group in self.groups:
            chosen = labels[..., group.scopes].unbind(-1)
            entries = (*chosen, torch.arange(len(group), device=self.device))
            yield group.tables[entries].sum(-1)

    def _check_factors(self, scopes: Tensor, tables: Tensor) -> None:
        n, k, shape = len(self), scopes.shape[1], tuple(tables.shape)

        def first(wrong: Tensor) -> list[int] | None:
            """Return the variables of the first factor (F,) that is wrong."""
            return scopes[wrong.nonzero()[0, 0]].tolist() if wrong.any() else None

        if len(shape) != k + 1 or shape[-1] != len(scopes):
            raise BadInput(f"{len(scopes)} factors of {k} variables with tables of shape {shape}")
        if scope := first(((scopes < 0) | (scopes >= n)).any(1)):
            raise BadInput(f"a factor over variables {scope}: there are the variables 0 to {n - 1}")
        ordered = scopes.sort(1).values
        if scope := first((ordered[:, 1:] == ordered[:, :-1]).any(1)):
            raise BadInput(f"a factor over variables {scope}: one appears twice")
        if scope := first((self.cardinalities[scopes] != torch.tensor(shape[:-1], device=self.device)).any(1)):
            given, expected = ("x".join(map(str, s)) for s in (shape[:-1], self.cardinalities[scope].tolist()))
            raise BadInput(f"the factor over variables {scope} has a table of {given}, expected {expected}")
        top = stored(tables).flatten(0, -2).amax(0)  # nan where any is
        top = top.expand(len(scopes)) if is_shared(tables) else top
        if scope := first(top.isnan() | (top == math.inf)):
            raise BadInput(f"the factor over variables {scope} has a log-potential that is not a number or infinite")
        if scope := first(torch.isneginf(top)):
            raise Contradiction(f"the factor over variables {scope} is 0 everywhere: no labelling is possible")


def _replace_hard(tables: Tensor, value: Tensor) -> Tensor:
    """Return the tables with a value in the place of -inf."""
    return torch.where(torch.isneginf(tables), value, tables)


def _stacked(factors: Iterable[Factor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield single factors as groups."""
    by_shape: dict[tuple[int, ...], list[tuple[Sequence[int], Tensor]]] = {}
    for scope, table in factors:
        table = torch.as_tensor(table, dtype=torch.float64)
        if table.dim() != len(scope):
            raise BadInput(f"the factor over variables {list(scope)} has a table of {table.dim()} dimensions")
        by_shape.setdefault(tuple(table.shape), []).append((scope, table))
    for shape, found in by_shape.items():
        scopes = torch.tensor([list(scope) for scope, _ in found], dtype=torch.int64).view(len(found), len(shape))
        yield scopes, torch.stack([table for _, table in found], -1)
