"""Looks at a solver for what would go wrong silently."""

from __future__ import annotations

import warnings
from typing import Any

from mrfquant.energies import FirstOrderTaylor
from mrfquant.errors import Diverged

Solver = Any  # an Inference, whose file imports this one

CHECK_INTERVAL = 100  # steps between two looks
WARN_UNDECIDED_FRACTION = 0.05  # of the weights: rounding more of them may surprise
WARN_SAME_FRACTION = 0.9  # of the weights: so many with one label use little of the levels
WARN_AFTER = 0.9  # share of the budget after which labels should be decided


def check_solver(solver: Solver) -> None:
    """Raise if the solver cannot go on from where it stands. Waits for the device."""
    solver.labelling.check_all_known()
    check_answer(solver)
    if solver.budget is not None and solver.iteration >= WARN_AFTER * solver.budget > 0:
        warn_of_labels(solver)


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


def warn_of_labels(solver: Solver) -> None:
    """Warn, once for each reason, if rounding changes the network, or if nearly all weights have one label."""
    undecided = 1 - solver.report.fraction_decided()
    if undecided > WARN_UNDECIDED_FRACTION and "undecided" not in solver.warned:
        solver.warned.add("undecided")
        warnings.warn(
            f"{undecided:.1%} of the weights are undecided, rounding changes the network: let beta end higher, or "
            "train longer",
            stacklevel=3,
        )
    share, level = solver.report.commonest_level()
    wanted = type(solver.energy) is not FirstOrderTaylor  # priors make networks sparse
    if share > WARN_SAME_FRACTION and not wanted and "same" not in solver.warned:
        solver.warned.add("same")
        warnings.warn(
            f"{share:.1%} of the weights have the level {level:g}: levels that reach too far leave the others unused; "
            "start at trained weights with form = 'wells', whose scales follow the weights, or lower scale or reach",
            stacklevel=3,
        )
