"""Explicit Markov random fields: factor graphs, solvers with known guarantees, files of the UAI competitions."""

from mrfquant.mrf.branch_and_bound import BranchAndBound
from mrfquant.mrf.coordinate import ICM, CoordinateDescent, Gibbs, SequentialMeanField
from mrfquant.mrf.dual import DualAscent
from mrfquant.mrf.exact import Enumeration, JunctionTree, TooWide
from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.fields import ising, potts
from mrfquant.mrf.graph_cut import AlphaExpansion
from mrfquant.mrf.learning import log_partition, with_evidence
from mrfquant.mrf.local_search import LocalSearch
from mrfquant.mrf.message_passing import BeliefPropagation
from mrfquant.mrf.portfolio import Portfolio
from mrfquant.mrf.relaxation import Relaxation
from mrfquant.mrf.solve import solve
from mrfquant.mrf.solver import FieldSolver, Result, Row
from mrfquant.mrf.tree_reweighted import TreeReweighted

__all__ = [
    "ICM",
    "AlphaExpansion",
    "BeliefPropagation",
    "BranchAndBound",
    "Contradiction",
    "CoordinateDescent",
    "DualAscent",
    "Enumeration",
    "FactorGraph",
    "Gibbs",
    "JunctionTree",
    "LocalSearch",
    "Portfolio",
    "Relaxation",
    "Result",
    "Row",
    "SequentialMeanField",
    "FieldSolver",
    "TooWide",
    "TreeReweighted",
    "ising",
    "log_partition",
    "potts",
    "solve",
    "with_evidence",
]
