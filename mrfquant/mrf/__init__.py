"""Explicit Markov random fields: factor graphs, solvers with known guarantees, files of the UAI competitions."""

from mrfquant.mrf.coordinate import ICM, CoordinateDescent, Gibbs, SequentialMeanField
from mrfquant.mrf.dual import BranchAndBound, DualAscent
from mrfquant.mrf.exact import Enumeration, JunctionTree, TooWide
from mrfquant.mrf.factor_graph import Contradiction, FactorGraph
from mrfquant.mrf.fields import ising, potts
from mrfquant.mrf.graph_cut import AlphaExpansion
from mrfquant.mrf.learning import log_partition, with_evidence
from mrfquant.mrf.local_search import LocalSearch
from mrfquant.mrf.message_passing import BeliefPropagation, TreeReweighted
from mrfquant.mrf.portfolio import Portfolio
from mrfquant.mrf.relaxation import Relaxation
from mrfquant.mrf.solve import solve
from mrfquant.mrf.solver import FieldSolver, Result, Row

__all__ = ["Contradiction", "FactorGraph", "ising", "potts"]
__all__ += ["FieldSolver", "Result", "Row", "TooWide", "log_partition", "solve", "with_evidence"]
__all__ += ["BeliefPropagation", "Enumeration", "Gibbs", "JunctionTree", "Relaxation", "TreeReweighted"]
__all__ += ["ICM", "AlphaExpansion", "BranchAndBound", "CoordinateDescent", "DualAscent", "LocalSearch"]
__all__ += ["Portfolio", "SequentialMeanField"]
