"""The names of mrfquant.mrf and where they live."""

from .contradiction import Contradiction as Contradiction
from .factor_graph import FactorGraph as FactorGraph
from .fields import ising as ising, potts as potts
from .annealed_importance import sample_log_z as sample_log_z
from .labellings import (
    best_labellings as best_labellings,
    diverse_labellings as diverse_labellings,
    marginal_map as marginal_map,
)
from .layers import (
    crf_belief_propagation as crf_belief_propagation,
    crf_mean_field as crf_mean_field,
    grid_edges as grid_edges,
)
from .learning import (
    log_partition as log_partition,
    pseudo_likelihood as pseudo_likelihood,
    with_evidence as with_evidence,
)
from .result import Result as Result, Row as Row
from .solver import FieldSolver as FieldSolver
from .solving import solve as solve

# solvers
from .annealing import Annealing as Annealing
from .coordinate import (
    CoordinateDescent as CoordinateDescent,
    Gibbs as Gibbs,
    ICM as ICM,
    SequentialMeanField as SequentialMeanField,
)
from .dual import BranchAndBound as BranchAndBound, DualAscent as DualAscent
from .exact import Enumeration as Enumeration, JunctionTree as JunctionTree, TooWide as TooWide
from .graph_cut import AlphaExpansion as AlphaExpansion
from .iterated_descent import IteratedDescent as IteratedDescent
from .local_search import LocalSearch as LocalSearch
from .message_passing import BeliefPropagation as BeliefPropagation, TreeReweighted as TreeReweighted
from .portfolio import Portfolio as Portfolio
from .relaxation import Relaxation as Relaxation
from .toulbar2 import Toulbar2 as Toulbar2
