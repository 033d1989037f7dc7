"""Explicit Markov random fields: factor graphs, solvers with known guarantees, files of the UAI competitions."""

from mrfquant.mrf.coordinate import ICM, CoordinateDescent, SequentialMeanField
from mrfquant.mrf.exact import Enumeration, JunctionTree, TooWide
from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.fields import ising, potts
from mrfquant.mrf.local_search import LocalSearch
from mrfquant.mrf.message_passing import BeliefPropagation, TreeReweighted
from mrfquant.mrf.relaxation import Relaxation
from mrfquant.mrf.solve import solve
from mrfquant.mrf.solver import Result, Row, Solver

__all__ = [
    "ICM",
    "BeliefPropagation",
    "Contradiction",
    "CoordinateDescent",
    "Enumeration",
    "FactorGraph",
    "JunctionTree",
    "LocalSearch",
    "Relaxation",
    "Result",
    "Row",
    "SequentialMeanField",
    "Solver",
    "TooWide",
    "TreeReweighted",
    "ising",
    "potts",
    "solve",
]
