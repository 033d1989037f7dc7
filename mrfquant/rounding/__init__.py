"""Rounding trained networks: the labels of a layer as a pairwise Markov random field."""

from mrfquant.rounding.answers import LayerReport
from mrfquant.rounding.call import RoundedNetwork, round_network
from mrfquant.rounding.labels import Rounded
from mrfquant.rounding.network import Rounding
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.solvers import SOLVERS, RoundingSolver

__all__ = [
    "SOLVERS",
    "LayerProblem",
    "LayerReport",
    "Rounded",
    "RoundedNetwork",
    "Rounding",
    "RoundingSolver",
    "round_network",
]
