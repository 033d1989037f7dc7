"""Rounding trained networks: the labels of a layer as a pairwise Markov random field."""

from mrfquant.rounding.answers import LayerReport, RoundedNetwork
from mrfquant.rounding.call import round_network
from mrfquant.rounding.labels import Rounded
from mrfquant.rounding.network import SOLVERS, Rounding
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.solvers import LayerSolver

__all__ = ["LayerProblem", "LayerReport", "LayerSolver", "Rounded", "RoundedNetwork", "Rounding", "SOLVERS"]
__all__ += ["round_network"]
