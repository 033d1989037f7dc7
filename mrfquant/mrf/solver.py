"""The interface of a solver on a factor graph, and the loop that runs one."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mrfquant.mrf.factor_graph import FactorGraph

PROVED = 1e-9  # a gap that is rounding, as a share of the energy
LOOKS = 1.5  # without a trace, labels are looked at in iterations that grow by this factor

Direction = Literal["exact", "lower bound", "upper bound", "estimate"]
Reason = Literal["converged", "iterations", "time"]


def proves(bound: float, energy: float) -> bool:
    """Whether a lower bound on all energies says that this one is the least."""
    return math.isfinite(energy) and energy - bound <= PROVED * max(1.0, abs(energy))


@dataclass(frozen=True)
class Row:
    """One iteration: what moved, the free energy -log Z as the solver sees it, the energy of its labelling, the least
    so far, and a bound below which no energy is."""

    iteration: int
    residual: float
    free_energy: float
    energy: float
    best: float
    seconds: float
    bound: float = -math.inf


@dataclass
class Result:
    """What a run found.

    Attributes:
        labels: (n,) the labelling of least energy that was seen.
        energy: its energy, inf if it is forbidden.
        marginals: flat, at the end.
        log_z: the logarithm of the partition function, None if the solver has none.
        direction: what `log_z` is worth: exact, a lower or an upper bound, an estimate.
        reason: why it ended.
        iterations: done.
        seconds: taken.
        trace: a row per iteration if asked for, else a few.
        bound: no labelling has a lower energy; -inf if the solver knows nothing.
        factor_marginals: as the tables of the graph's groups, if asked for.
    """

    labels: Tensor
    energy: float
    marginals: Tensor
    log_z: float | None
    direction: Direction | None
    reason: Reason
    iterations: int
    seconds: float
    trace: list[Row] = field(default_factory=list)
    bound: float = -math.inf
    factor_marginals: list[Tensor] | None = None

    @property
    def gap(self) -> float:
        """How far the labelling may be from the best: inf if nothing is known."""
        return max(0.0, self.energy - self.bound) if math.isfinite(self.energy) else math.inf

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that no labelling has a lower energy."""
        return proves(self.bound, self.energy)


class FieldSolver(ABC):
    """One method at work on one graph.

    A subclass sets up its state in `__init__`, moves in `step`, and reads off its state what the other methods give.

    Args:
        graph: the field.
        seed: of whatever the method draws.
        start: flat marginals to begin from (a warm start).
    """

    direction: ClassVar[Direction | None] = None  # what `log_z` is
    compiled: ClassVar[bool] = False  # whether it has loops that numba compiles when they are first used

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        self.graph, self.start = graph, start
        self.generator = torch.Generator(graph.device).manual_seed(seed)
        self.deadline = math.inf

    @abstractmethod
    def step(self) -> float:
        """One iteration; returns the residual, by how much the state moved: 0 at a fixed point.

        One that may take seconds looks at `out_of_time` on its way and ends early, with a state that is worth reading.
        """

    @abstractmethod
    def marginals(self) -> Tensor:
        """The present belief about every variable, flat."""

    def labels(self) -> Tensor:
        """The labelling that the present state stands for: int64 (n,)."""
        return self.graph.argmax(self.marginals())

    def log_z(self) -> float | None:
        """The logarithm of the partition function as far as the method knows it."""
        return None

    def bound(self) -> float:
        """An energy below which no labelling is."""
        return -math.inf

    @property
    def out_of_time(self) -> bool:
        """Whether the time of the present run is used up."""
        return time.perf_counter() > self.deadline

    def factor_marginals(self) -> list[Tensor]:
        """The present belief about the labels of each factor, as the tables of `graph.groups`: here, independent."""
        u = self.marginals()
        found = []
        for group in self.graph.groups:
            joint = u.new_ones(()).expand(group.tables.shape)
            for axis, index in enumerate(group.index):
                shape = [1] * joint.dim()
                shape[axis], shape[-1] = index.shape
                joint = joint * group.gather(u, axis).view(shape)
            found.append(joint)
        return found

    def _log_z(self, best: float) -> float | None:
        """`log_z`; one labelling alone gives a lower bound, too."""
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
        """Step until the residual is at most `tolerance`, or iterations or time are used up.

        Args:
            iterations: at most so many.
            tolerance: the residual at which it has converged.
            seconds: at most so long.
            on_row: called with each row of the trace.
            trace: keep a row per iteration, and with it the best labelling on the way; else of few iterations.
            factors: add the marginals of the factors to the result.
        """
        started = time.perf_counter()
        self.deadline = started + seconds
        rows: list[Row] = []
        labels = self.labels()
        reason: Reason = "iterations"
        best, bound = self.graph.energy(labels).item(), self.bound()
        done, look, value = 0, 1, self._log_z(best) if iterations < 1 else None
        while done < iterations:
            residual, done = self.step(), done + 1
            elapsed = time.perf_counter() - started
            reason = "converged" if residual <= tolerance else "time" if elapsed > seconds else "iterations"
            if trace or reason != "iterations" or done in (look, iterations):
                look = math.ceil(LOOKS * look)
                found = self.labels()
                energy = self.graph.energy(found).item()
                if energy < best:
                    labels, best = found.clone(), energy
                value, bound = self._log_z(best), max(bound, self.bound())
                free_energy = math.nan if value is None else -value
                rows.append(Row(done, residual, free_energy, energy, best, elapsed, bound))
                on_row(rows[-1])
            if reason != "iterations":
                break
        elapsed = time.perf_counter() - started
        shares = self.factor_marginals() if factors else None
        return Result(labels, best, self.marginals(), value, self.direction, reason, done, elapsed, rows, bound, shares)
