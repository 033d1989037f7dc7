"""The contract of a solver of fields."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mrfquant.mrf import FactorGraph, FieldSolver, Result, Row, solve
from mrfquant.testing import fields as random_fields
from mrfquant.testing.contract import Contract, seed_cpu
from mrfquant.testing.fields import Truth

CONVERGED = 1e-6  # residual at which marginals have to be consistent
SAMPLES = 2000  # sweeps of a sampler, whose marginals have to be right to 5 / sqrt(SAMPLES)
SAMPLED = ("tree-2-random", "grid-mixed-random")


@dataclass(frozen=True)
class Answer:
    """The answer of a solver on a field."""

    name: str
    graph: FactorGraph
    truth: Truth
    result: Result


class FieldSolverContract(Contract):
    """Checks that `solve` and the commands rely on. Inherit it and name your solver:

        class TestMySolver(FieldSolverContract):
            part = MySolver

    It runs on small random fields, trees, grids and full graphs, of 2, 3 and mixed numbers of labels, with random,
    attractive and repulsive couplings and with a constraint, and is compared with a list of all labellings.

    Attributes:
        fields: names of the fields.
        iterations: the most iterations of a run.
        tolerance: the residual at which a run ends.
        exact_on_trees: whether it finds log Z and the marginals of trees; without a log Z, the best labelling.
        monotone: whether no iteration is worse than the one before, in the lower bound on log Z if it has one, else in
            the energy of the labels.
    """

    supplied = ("graph", "seed", "start")
    fields: ClassVar[Sequence[str]] = random_fields.NAMES
    iterations: ClassVar[int] = 100
    tolerance: ClassVar[float] = 1e-8
    exact_on_trees: ClassVar[bool] = False
    monotone: ClassVar[bool] = False
    _answers: ClassVar[dict[str, Answer]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._answers = {}

    def make(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, **settings: Any) -> FieldSolver:
        """Build the solver on a field."""
        return self.part(graph, seed=seed, start=start, **{**self.settings, **settings})

    def build(self, **settings: Any) -> FieldSolver:
        return self.make(random_fields.field(self.fields[0]), **settings)

    def run(self, solver: FieldSolver, **limits: Any) -> Result:
        """Run to the contract's or other limits, with a trace."""
        limits = {"iterations": self.iterations, "tolerance": self.tolerance, **limits}
        return solver.run(**limits, trace=True)

    def answer(self, name: str) -> Answer:
        """Return a run on a field, the same for all checks, which only read it."""
        if name not in self._answers:
            graph = random_fields.field(name)
            self._answers[name] = Answer(name, graph, random_fields.truth(name), self.run(self.make(graph, seed=1)))
        return self._answers[name]

    def answers(self) -> Iterator[Answer]:
        """Return a run on every field."""
        return map(self.answer, self.fields)

    def some(self) -> Iterator[Answer]:
        """Return runs on a field of each shape, for checks that need further runs."""
        return map(self.answer, random_fields.FEW)

    def test_marginals_are_distributions(self) -> None:
        for answer in self.answers():
            self._check_marginals(answer.name, answer.graph, answer.result)

    def test_every_variable_gets_one_of_its_labels(self) -> None:
        for answer in self.answers():
            labels = answer.result.labels
            assert labels.dtype == torch.int64, f"{answer.name}: labels are {labels.dtype}, not int64"
            assert labels.shape == (len(answer.graph),), f"{answer.name}: labels of shape {tuple(labels.shape)}"
            outside = ((labels < 0) | (labels >= answer.graph.cardinalities)).nonzero()[:, 0].tolist()
            assert not outside, f"{answer.name}: variables {outside} get labels out of range"

    def test_the_energy_is_that_of_the_labels_and_the_best_on_the_way(self) -> None:
        for answer in self.answers():
            result, energy = answer.result, answer.graph.energy(answer.result.labels).item()
            told = f"{answer.name}: the energy told is {result.energy:.6g}"
            assert math.isclose(result.energy, energy, abs_tol=1e-9), f"{told}, that of the labels is {energy:.6g}"
            best = min((row.energy for row in result.trace), default=math.inf)
            assert result.energy <= best, f"{told}, an iteration had {best:.6g}"

    def test_log_z_is_on_the_stated_side_of_the_truth(self) -> None:
        for answer in self.answers():
            self._check_side(answer.name, answer.result, answer.truth)

    def test_no_labelling_is_below_the_bound_on_energies(self) -> None:
        for answer in self.answers():
            highest = max([answer.result.bound, *(row.bound for row in answer.result.trace)])
            told = f"{answer.name}: the least energy is {answer.truth.optimum:.6f}, the bound is {highest:.6f}"
            assert highest <= answer.truth.optimum + 1e-6, told

    def test_what_is_called_exact_is_exact(self) -> None:
        for answer in self.answers():
            tree = answer.name.startswith("tree") and self.exact_on_trees
            if answer.result.direction == "exact" or tree:
                self._check_exact(answer.name, answer.result, answer.truth)

    def test_factor_marginals_are_those_of_their_factors(self) -> None:
        """In the order and the shape of the graph's tables; where the solver has converged, they sum to `marginals`."""
        for answer in self.some():
            result = self.run(self.make(answer.graph, seed=1), factors=True)
            assert result.factor_marginals is not None
            for group, shares in zip(answer.graph.groups, result.factor_marginals, strict=True):
                told = f"{answer.name}: marginals of factors of shape {tuple(group.tables.shape)}"
                assert shares.shape == group.tables.shape, f"{told} have the shape {tuple(shares.shape)}"
                for axis in range(len(group.index)):
                    others = [a for a in range(len(group.index)) if a != axis]
                    own = shares.sum(others) if others else shares
                    off = (own - group.gather(result.marginals, axis)).abs().max().item()
                    sums = result.direction is None or result.log_z is not None  # not those of max-product
                    converged = sums and result.trace[-1].residual <= CONVERGED
                    assert not converged or off <= 1e-3, f"{told} sum to marginals that are off by {off:.2g}"
            if result.direction == "exact":
                pairs = zip(answer.truth.factor_marginals, result.factor_marginals, strict=True)
                off = max((a - b).abs().max().item() for a, b in pairs)
                assert off <= 1e-6, f"{answer.name}: marginals of factors are off by {off:.2g}"

    def test_samples_are_of_the_distribution(self) -> None:
        for name in SAMPLED if self.part.samples else ():
            result = self.make(random_fields.field(name), seed=3).run(SAMPLES, -1.0)
            off = (result.marginals - random_fields.truth(name).marginals).abs().max().item()
            assert off <= 5 / math.sqrt(SAMPLES), f"{name}: after {SAMPLES} sweeps marginals are off by {off:.2g}"

    def test_no_iteration_is_worse_than_the_one_before(self) -> None:
        for answer in self.answers() if self.monotone else ():
            for a, b in itertools.pairwise(answer.result.trace):
                was, now = self._objective(a), self._objective(b)
                assert now <= was + 1e-9, f"{answer.name}: iteration {b.iteration} is worse, {now:.6g} after {was:.6g}"

    def test_a_warm_start_is_taken(self) -> None:
        """A monotone solver is not worse than the earlier run after one iteration."""
        for answer in self.some():
            start = answer.result.marginals.clone()
            given = start.clone()
            result = self.run(self.make(answer.graph, seed=2, start=given), iterations=1)
            assert torch.equal(given, start), f"{answer.name}: the start was overwritten"
            self._check_marginals(f"{answer.name}, from a warm start", answer.graph, result)
            if self.monotone:
                was, now = self._objective(answer.result.trace[-1]), self._objective(result.trace[-1])
                assert now <= was + 1e-9, f"{answer.name}: {now:.6g} one iteration after a start at {was:.6g}"

    def test_the_time_limit_is_kept(self) -> None:
        for answer in self.some():
            result = self.run(self.make(answer.graph), seconds=0.0, tolerance=-1.0)
            assert result.iterations == 1, f"{answer.name}: {result.iterations} iterations in 0 seconds"
            assert result.reason == "time", f"{answer.name}: out of time, the reason is {result.reason!r}"

    def test_the_same_seed_gives_the_same_answer(self) -> None:
        for answer in self.some():
            found = []
            for other in (1, 2):
                seed_cpu(other)
                found.append(self.run(self.make(answer.graph, seed=5), iterations=10))
            one, two = found
            assert torch.equal(one.labels, two.labels), f"{answer.name}: other labels with the same seed"
            assert torch.equal(one.marginals, two.marginals), f"{answer.name}: other marginals with the same seed"
            assert one.log_z == two.log_z, f"{answer.name}: another log Z with the same seed"

    def test_evidence_is_respected(self) -> None:
        for answer in self.some():
            name, evidence = f"{answer.name} with evidence", {0: 1, 2: 0}
            result = solve(answer.graph, self.make, evidence, self.iterations, self.tolerance)
            rows = answer.graph.per_variable(result.marginals)
            for v, label in evidence.items():
                assert result.labels[v] == label, f"{name}: variable {v} was observed to be {label}"
                assert rows[v][label] == 1, f"{name}: variable {v} has the marginals {rows[v]}"
            energy = answer.graph.energy(result.labels).item()
            assert math.isclose(result.energy, energy, abs_tol=1e-9), f"{name}: {result.energy} for labels of {energy}"
            self._check_marginals(name, answer.graph, result)
            self._check_side(name, result, random_fields.truth_about(answer.graph.condition(evidence)[0]))

    def test_the_graph_is_only_read(self) -> None:
        for answer in self.answers():
            same = random_fields.same(answer.graph, random_fields.field(answer.name))
            assert same, f"{answer.name}: its factors have changed"

    def _objective(self, row: Row) -> float:
        """Return what a monotone solver does not increase."""
        return row.free_energy if self.part.direction == "lower bound" else row.energy

    @staticmethod
    def _check_marginals(name: str, graph: FactorGraph, result: Result) -> None:
        u = result.marginals
        assert u.shape == (graph.size,), f"{name}: marginals of shape {tuple(u.shape)}, expected ({graph.size},)"
        assert u.isfinite().all(), f"{name}: a marginal is not a number"
        assert u.min() >= 0, f"{name}: a marginal is {u.min():g}"
        for c in graph.by_cardinality:
            off = (c.planes(u).sum(0) - 1).abs().max()
            assert off <= 1e-6, f"{name}: marginals of variables with {c.labels} labels miss the sum 1 by {off:g}"

    @staticmethod
    def _check_side(name: str, result: Result, truth: Truth) -> None:
        log_z, slack = truth.log_z, 1e-6
        if result.log_z is None:
            return
        assert result.direction is not None, f"{name}: it gives a log Z: say in `direction` what that is worth"
        told = f"{name}: log Z is {log_z:.6f}, and the {result.direction} is"
        values = [result.log_z, *(-row.free_energy for row in result.trace)]
        assert not math.isnan(result.log_z), f"{told} not a number"
        if result.direction == "lower bound":
            assert max(values) <= log_z + slack, f"{told} {max(values):.6f} in some iteration"
        if result.direction == "upper bound":
            assert min(values) >= log_z - slack, f"{told} {min(values):.6f} in some iteration"
        if result.direction == "exact":
            assert abs(result.log_z - log_z) <= slack, f"{told} {result.log_z:.6f}"

    @staticmethod
    def _check_exact(name: str, result: Result, truth: Truth) -> None:
        if result.direction == "exact" or result.log_z is None:
            told = f"{name}: the labels have the energy {result.energy:.6f}, the best ones {truth.optimum:.6f}"
            assert abs(result.energy - truth.optimum) <= 1e-6, told
        if result.log_z is not None:
            assert abs(result.log_z - truth.log_z) <= 1e-6, f"{name}: {result.log_z:.6f} for log Z = {truth.log_z:.6f}"
            off = (result.marginals - truth.marginals).abs().max()
            assert off <= 1e-6, f"{name}: marginals are off by {off:.2g}"
