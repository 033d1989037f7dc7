"""Saving a solver, and going on from what was saved."""

from __future__ import annotations

from typing import Any

import torch

from mrfquant.errors import BadInput

Solver = Any  # an Inference, whose file imports this one


def solution(solver: Solver) -> dict[str, Any]:
    """Return the solver's state without the optimizer's: enough to round or sample again.

    Processes that share the variables all have to ask; the first one gets what one process alone would have, on the
    host.
    """
    labelling = solver.labelling
    return {
        "kind": _kind(solver),
        "iteration": solver.iteration,
        "budget": solver.budget,
        "variables": solver.processes.joined(solver.variables),
        "w": labelling.labelled.w,
        "levels": _levels(solver),
        "scale": labelling.scale_of_runs,
        "free": labelling.free.w,
        "order": labelling.flat_permutation,
        "energy": solver.energy.state_dict(),
        "solver": solver.own_state(),
    }


@torch.no_grad()
def load_solution(solver: Solver, saved: dict[str, Any]) -> None:
    """Stand where a solver of the same kind on the same labelling stood."""
    labelling, own = solver.labelling, solver.processes.own
    if "variables" not in saved:
        raise BadInput("the saved state is no solver's, but perhaps that of an optimizer: label the network anew")
    whole = [(*x.shape[:-1], b.m) for b, x in zip(labelling.blocks, solver.variables, strict=True)]
    given = [tuple(x.shape) for x in (*saved["variables"], saved["w"], saved["free"])]
    fits = [*whole, (len(labelling),), (len(labelling.free),)] == given
    fits = fits and _shape(labelling.scale_of_runs) == _shape(saved["scale"])
    fits = fits and labelling.flat_permutation == saved["order"] and saved["levels"] == _levels(solver)
    fits = fits and saved.get("kind", _kind(solver)) == _kind(solver)
    if not fits:
        raise BadInput(
            "the saved state does not fit: it is of another network, other levels or groups, or another kind of solver"
        )
    solver.iteration = int(saved["iteration"])
    solver.budget = solver.budget or saved["budget"]
    for block, x, variables in zip(labelling.blocks, solver.variables, saved["variables"], strict=True):
        x.copy_(own(block, variables))
    labelling.labelled.w.copy_(saved["w"])
    labelling.free.w.copy_(saved["free"])
    if labelling.scales is not None:
        labelling.scales.set(saved["scale"])
    if solver.learned_scales is not None:
        solver.learned_scales.reload()
    if saved["energy"]:
        solver.energy.load_state_dict(saved["energy"])
    if saved["solver"]:
        solver.load_own_state(saved["solver"])
    for block, x in solver.items():
        solver.restore(block, x)
    labelling.publish()
    labelling.mark_clean()


def _kind(solver: Solver) -> list[str]:
    """Return what decides what the variables mean, beside their shape."""
    return [type(solver).__name__, getattr(solver, "form", "")]


def _shape(scale: torch.Tensor | None) -> torch.Size | None:
    return None if scale is None else scale.shape


def _levels(solver: Solver) -> list[list[float]]:
    return [list(block.levels.values) for block in solver.labelling.blocks]
