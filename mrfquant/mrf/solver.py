"""The base classes of solvers of factor graphs, and the loop that runs one."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.groups import along
from mrfquant.mrf.result import Direction, Reason, Result, Row, proves

CHECK_GROWTH = 1.5  # without a trace, labels are read after 1, 2, 3, 5, 8, ... iterations


class FieldSolver(ABC):
    """Base class of solvers: one method on one graph.

    A subclass initialises its state in `__init__`, changes it in `step`, and reads it in the other methods.

    Args:
        graph: the field.
        seed: seed of all random choices.
        start: flat marginals to start from (a warm start).
    """

    direction: ClassVar[Direction | None] = None  # what `log_z` is
    samples: ClassVar[bool] = False  # whether its marginals are fractions of samples, and exact in the limit
    compiled: ClassVar[bool] = False  # whether numba compiles loops at their first use

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        self.graph, self.start = graph, start
        self.generator = torch.Generator(graph.device).manual_seed(seed)
        self.deadline = math.inf

    @abstractmethod
    def step(self) -> float:
        """Do one iteration; return the residual, how far the state moved: 0 at a fixed point.

        An iteration that may take seconds checks `out_of_time` and ends early, with a state that can be read; `run`
        keeps the time free that it takes to read it.
        """

    @abstractmethod
    def marginals(self) -> Tensor:
        """Return the present marginals of every variable, flat."""

    def labels(self) -> Tensor:
        """Return the present labelling: int64 (n,)."""
        return self.graph.argmax(self.marginals())

    def log_z(self) -> float | None:
        """Return the logarithm of the partition function, exact or as `direction` says; None without one."""
        return None

    def bound(self) -> float:
        """Return a lower bound on the energy of any labelling."""
        return -math.inf

    def close(self) -> None:  # noqa: B027
        """Release what a run holds; called at its end. Most solvers hold nothing."""

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit of the present run has passed."""
        return time.perf_counter() > self.deadline

    def factor_marginals(self) -> list[Tensor]:
        """Return the marginals of the factors, shaped as the tables of `graph.groups`; here products of `marginals`."""
        u = self.marginals()
        found = []
        for group in self.graph.groups:
            joint = u.new_ones(()).expand(group.tables.shape)
            for axis in range(len(group.index)):
                joint = joint * along(group.gather(u, axis), axis, joint.dim())
            found.append(joint)
        return found

    def _log_z(self, best: float) -> float | None:
        """Return `log_z`; a lower bound is at least the score of the best labelling."""
        value = self.log_z()
        return max(value, -best) if value is not None and self.direction == "lower bound" else value

    @torch.no_grad()
    def run(
        self,
        iterations: int = 1000,
        tolerance: float = 1e-6,
        seconds: float = math.inf,
        on_row: Callable[[Row], None] = lambda row: None,
        trace: bool = False,
        factors: bool = False,
    ) -> Result:
        """Step until the residual is at most `tolerance`, or a limit is reached.

        Args:
            iterations: the most iterations.
            tolerance: the residual at which it has converged.
            seconds: the time limit, with the last look at the labels and log Z.
            on_row: called with each row of the trace.
            trace: keep a row of, and read the labels after, every iteration instead of some.
            factors: add the marginals of the factors to the result.
        """
        started = time.perf_counter()
        self.deadline = started + seconds
        rows: list[Row] = []
        labels = self.labels()
        reason: Reason = "iterations"
        best, bound = self.graph.energy(labels).item(), self.bound()
        looked = time.perf_counter() - started
        done, look, value = 0, 1, self._log_z(best) if iterations < 1 else None
        while done < iterations:
            self.deadline = started + seconds - looked
            residual, done = self.step(), done + 1
            elapsed = time.perf_counter() - started
            reason = "converged" if residual <= tolerance else "time" if self.out_of_time else "iterations"
            due = done == look and elapsed + 2 * looked < seconds  # else the last look is near
            if trace or due or reason != "iterations" or done == iterations:
                look = math.ceil(CHECK_GROWTH * look)
                found = self.labels()
                energy = self.graph.energy(found).item()
                if energy < best:
                    labels, best = found.clone(), energy
                value, bound = self._log_z(best), max(bound, self.bound())
                free_energy = math.nan if value is None else -value
                rows.append(Row(done, residual, free_energy, energy, best, elapsed, bound))
                looked = time.perf_counter() - started - elapsed
                on_row(rows[-1])
            if reason != "iterations":
                break
        self.close()
        elapsed = time.perf_counter() - started
        shares = self.factor_marginals() if factors else None
        return Result(labels, best, self.marginals(), value, self.direction, reason, done, elapsed, rows, bound, shares)


class LabellingSolver(FieldSolver):
    """Base class of solvers whose state is the best labelling so far, its energy, and a bound on all energies.

    Args:
        soft: the graph that energies are computed on; by default `graph`.
    """

    compiled = True

    def __init__(
        self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None, soft: FactorGraph | None = None
    ) -> None:
        super().__init__(graph, seed, start)
        self._soft = soft or graph
        self._labels = graph.argmax(graph.unary() if start is None else start)
        self.energy, self._bound = self._soft.energy(self._labels).item(), -math.inf

    def marginals(self) -> Tensor:
        return self.graph.one_hot(self._labels)

    def labels(self) -> Tensor:
        return self._labels

    def bound(self) -> float:
        return self._bound

    @property
    def optimal(self) -> bool:
        """Whether the bound proves the labelling."""
        return proves(self.bound(), self.energy)

    def offer(self, labels: Tensor) -> bool:
        """Keep a labelling if it is the best so far; return whether it is."""
        energy = self._soft.energy(labels).item()
        better = energy < self.energy
        if better:
            self._labels, self.energy = labels.clone(), energy
        return better
