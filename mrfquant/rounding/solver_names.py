"""Rounding solvers by name."""

from __future__ import annotations

from mrfquant.rounding.by_inference import RoundByInference
from mrfquant.rounding.solvers import RoundGPTQ, RoundICM, RoundingSolver, RoundMeanField, RoundNearest, RoundTree

SOLVERS: dict[str, type[RoundingSolver]] = {
    solver.name: solver for solver in (RoundNearest, RoundGPTQ, RoundICM, RoundMeanField, RoundTree, RoundByInference)
}
