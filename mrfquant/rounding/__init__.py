"""Rounding trained networks: the labels of a layer as a pairwise Markov random field."""

from mrfquant.rounding.answers import LayerReport
from mrfquant.rounding.call import RoundedNetwork, round_network, rounded
from mrfquant.rounding.joint import Jointly
from mrfquant.rounding.labels import Rounded
from mrfquant.rounding.network import Rounding
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.solver_names import SOLVERS
from mrfquant.rounding.solvers import LayerSolver

__all__ = [
    "SOLVERS",
    "Jointly",
    "LayerProblem",
    "LayerReport",
    "Rounded",
    "RoundedNetwork",
    "Rounding",
    "LayerSolver",
    "round_network",
    "rounded",
]
