"""Contract tests that the author of a part inherits; needs pytest, which nothing else here does.

InferenceContract is that of solvers of networks, EnergyContract of energies, ProjectionContract of projections onto
the simplex, ObjectiveContract of losses and their figures, FieldSolverContract of solvers of explicit fields.

from mrfquant.testing import InferenceContract

class TestMySolver(InferenceContract):
    part = MySolver
"""

from mrfquant.testing.contract import Contract
from mrfquant.testing.energy import EnergyContract
from mrfquant.testing.inference import InferenceContract
from mrfquant.testing.objective import ObjectiveContract
from mrfquant.testing.projection import ProjectionContract
from mrfquant.testing.solver import FieldSolverContract

__all__ = [
    "Contract",
    "EnergyContract",
    "InferenceContract",
    "ObjectiveContract",
    "ProjectionContract",
    "FieldSolverContract",
]
