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

Direction = Literal["exact", "lower bound", "upper bound", "estimate"]
Reason = Literal["converged", "iterations", "time"]


@dataclass(frozen=True)
class Row:
    """One iteration: what moved, the free energy -log Z as the solver sees it, the energy of its labelling."""

    iteration: int
    residual: float
    free_energy: float
    energy: float
    best: float
    seconds: float


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
        trace: a row per iteration.
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


class Solver(ABC):
    """One method at work on one graph.

    A subclass sets up its state in `__init__`, moves in `step`, and reads off its state what the other methods give.

    Args:
        graph: the field.
        seed: of whatever the method draws.
        start: flat marginals to begin from (a warm start).
    """

    direction: ClassVar[Direction | None] = None  # what `log_z` is

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        self.graph, self.start = graph, start
        self.generator = torch.Generator(graph.device).manual_seed(seed)

    @abstractmethod
    def step(self) -> float:
        """One iteration; returns the residual, by how much the state moved: 0 at a fixed point."""

    @abstractmethod
    def marginals(self) -> Tensor:
        """The present belief about every variable, flat."""

    def labels(self) -> Tensor:
        """The labelling that the present state stands for: int64 (n,)."""
        return self.graph.argmax(self.marginals())

    def log_z(self) -> float | None:
        """The logarithm of the partition function as far as the method knows it."""
        return None

    @torch.no_grad()
    def run(
        self,
        iterations: int = 1000,
        tolerance: float = 1e-6,
        seconds: float = math.inf,
        on_row: Callable[[Row], None] = lambda row: None,
        trace: bool = True,
    ) -> Result:
        """Step until the residual is at most `tolerance`, or iterations or time are used up.

        Args:
            iterations: at most so many.
            tolerance: the residual at which it has converged.
            seconds: at most so long.
            on_row: called with each row of the trace.
            trace: keep a row per iteration, and with it the best labelling on the way; without, only the end counts.
        """
        started = time.perf_counter()
        rows: list[Row] = []
        labels = self.labels()
        reason: Reason = "iterations"
        best = self.graph.energy(labels).item()
        done, residual = 0, math.inf
        while done < iterations:
            residual, done = self.step(), done + 1
            elapsed = time.perf_counter() - started
            reason = "converged" if residual <= tolerance else "time" if elapsed > seconds else "iterations"
            if trace or reason != "iterations" or done == iterations:
                found = self.labels()
                energy = self.graph.energy(found).item()
                if energy < best:
                    labels, best = found, energy
                value = self.log_z()
                rows.append(Row(done, residual, math.nan if value is None else -value, energy, best, elapsed))
                on_row(rows[-1])
            if reason != "iterations":
                break
        direction = self.direction
        if direction == "upper bound" and reason != "converged":
            direction = "estimate"  # such bounds hold at the fixed point only
        return Result(
            labels, best, self.marginals(), self.log_z(), direction, reason, done, time.perf_counter() - started, rows
        )
