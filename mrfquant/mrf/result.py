"""Answers of solvers of fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

OPTIMALITY_TOLERANCE = 1e-9  # a gap that is floating-point error, as a fraction of the energy

Direction = Literal["exact", "lower bound", "upper bound", "estimate"]
Reason = Literal["converged", "iterations", "time"]


def proves(bound: float, energy: float) -> bool:
    """Return whether a lower bound on all energies shows that this one is the least."""
    return math.isfinite(energy) and energy - bound <= OPTIMALITY_TOLERANCE * max(1.0, abs(energy))


@dataclass(frozen=True)
class Row:
    """One iteration of a solver.

    Its residual, the free energy -log Z, the energy of the labelling, the least so far, the time, and a lower bound on
    all energies.
    """

    iteration: int
    residual: float
    free_energy: float
    energy: float
    best: float
    seconds: float
    bound: float = -math.inf


@dataclass
class Result:
    """The result of a run; its arrays are tensors.

    Attributes:
        labels: (n,) the labelling of least energy that was seen.
        energy: its energy, inf if it is forbidden.
        marginals: flat marginals at the end.
        log_z: the logarithm of the partition function, None if the solver has none.
        direction: what `log_z` is: exact, a lower or an upper bound, an estimate.
        reason: why the run ended.
        iterations: number of iterations.
        seconds: time taken.
        trace: a row per iteration if requested, else some of them.
        bound: a lower bound on the energy of any labelling; -inf if the solver has none.
        factor_marginals: marginals in the shape of the tables of `graph.groups`, if requested.
    """

    labels: Any
    energy: float
    marginals: Any
    log_z: float | None
    direction: Direction | None
    reason: Reason
    iterations: int
    seconds: float
    trace: list[Row] = field(default_factory=list)
    bound: float = -math.inf
    factor_marginals: list[Any] | None = None

    @property
    def gap(self) -> float:
        """The energy above the bound; inf without a bound."""
        return max(0.0, self.energy - self.bound) if math.isfinite(self.energy) else math.inf

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that no labelling has a lower energy."""
        return proves(self.bound, self.energy)
