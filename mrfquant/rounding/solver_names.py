"""Rounding solvers by name."""

from __future__ import annotations

from mrfquant.rounding.by_inference import RoundByInference
from mrfquant.rounding.solvers import LayerSolver, RoundGPTQ, RoundICM, RoundMeanField, RoundNearest, RoundTree

SOLVERS: dict[str, type[LayerSolver]] = {
    solver.name: solver for solver in (RoundNearest, RoundGPTQ, RoundICM, RoundMeanField, RoundTree, RoundByInference)
}
