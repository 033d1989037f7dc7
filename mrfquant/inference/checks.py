"""Looks at a solver for what would go wrong silently."""

from __future__ import annotations

import warnings
from typing import Any

from mrfquant.errors import Diverged

Solver = Any  # an Inference, whose file imports this one

CHECK_INTERVAL = 100  # steps between two looks
WARN_UNDECIDED_FRACTION = 0.05  # fraction of undecided weights above which rounding is warned about


def check_solver(solver: Solver) -> None:
    """Raise if the solver cannot go on from where it stands. Waits for the device."""
    solver.labelling.check_all_known()
    check_answer(solver)


def check_answer(solver: Solver) -> None:
    """Raise if parameters were replaced or written to, or variables are not numbers. Waits for the device."""
    solver.labelling.check_not_replaced()
    kept = (*solver.variables, solver.labelling.free.w, solver.labelling.scale_of_runs)
    broken = not all(x is None or x.isfinite().all() for x in kept)
    if solver.processes.any(broken):  # or the others would wait for ever
        raise Diverged(
            f"the solver's variables are not numbers any more at step {solver.iteration}: a gradient was infinite or "
            "none; lower the learning rate, or clip gradients"
        )
    solver.labelling.labelled.check_not_written()


def warn_if_undecided(solver: Solver) -> None:
    """Warn if rounding the network changes it."""
    undecided = 1 - solver.report.fraction_decided()
    if undecided > WARN_UNDECIDED_FRACTION:
        warnings.warn(
            f"{undecided:.1%} of the weights are undecided, rounding changes the network: let beta end higher, or "
            "train longer",
            stacklevel=3,
        )
