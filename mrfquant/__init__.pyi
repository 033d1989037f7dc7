"""The public names of mrfquant and where they live; `__init__.py` imports each when it is first asked for."""

# a network's parameters as variables
# parts of your own for gin files
from .config.settings import (
    Count as Count,
)
from .config.settings import (
    Fraction as Fraction,
)
from .config.settings import (
    NonNegative as NonNegative,
)
from .config.settings import (
    Positive as Positive,
)
from .config.settings import (
    configurable as configurable,
)
from .data import Dataset as Dataset
from .data import Split as Split
from .data import dataset as dataset
from .data.torchvision_import import import_torchvision as import_torchvision

# models of the loss
from .energies import Energy as Energy
from .energies import FirstOrderTaylor as FirstOrderTaylor
from .energies import PairwiseEnergy as PairwiseEnergy
from .errors import BadInput as BadInput
from .errors import BadSetting as BadSetting
from .errors import RunFailed as RunFailed
from .inference import (
    BinaryConnect as BinaryConnect,
)
from .inference import (
    Inference as Inference,
)
from .inference import (
    LatentInference as LatentInference,
)
from .inference import (
    MeanField as MeanField,
)
from .inference import (
    MirrorDescent as MirrorDescent,
)
from .inference import (
    ProjectedInference as ProjectedInference,
)
from .inference import (
    ProximalICM as ProximalICM,
)

# solvers: what trains, and the bases to write one on
from .inference import (
    ProximalMeanField as ProximalMeanField,
)
from .inference import (
    ProxQuant as ProxQuant,
)
from .inference import (
    Reference as Reference,
)
from .inference import (
    Rounded as Rounded,
)
from .inference import (
    SparsemaxPGD as SparsemaxPGD,
)

# the distribution that u stands for
from .inference.entropies import Entropy as Entropy
from .inference.entropies import TreeEntropy as TreeEntropy
from .labelling import Block as Block
from .labelling import Labelling as Labelling
from .labelling import LevelSet as LevelSet
from .labelling import uniform as uniform
from .models import network as network
from .mrf import (
    ICM as ICM,
)

# explicit fields and their solvers
from .mrf import (
    BeliefPropagation as BeliefPropagation,
)
from .mrf import (
    CoordinateDescent as CoordinateDescent,
)
from .mrf import (
    Enumeration as Enumeration,
)
from .mrf import (
    FactorGraph as FactorGraph,
)
from .mrf import (
    JunctionTree as JunctionTree,
)
from .mrf import (
    LocalSearch as LocalSearch,
)
from .mrf import (
    Relaxation as Relaxation,
)
from .mrf import (
    Result as Result,
)
from .mrf import (
    SequentialMeanField as SequentialMeanField,
)
from .mrf import (
    Solver as Solver,
)
from .mrf import (
    TreeReweighted as TreeReweighted,
)
from .mrf import (
    ising as ising,
)
from .mrf import (
    potts as potts,
)
from .mrf import (
    solve as solve,
)
from .mrf.uai import read_evidence as read_evidence
from .mrf.uai import read_model as read_model
from .mrf.uai import write_model as write_model

# packed networks
from .packing import load as load
from .packing import pack_model as pack_model

# maps onto the simplex
from .projections import Hardmax as Hardmax
from .projections import Projection as Projection
from .projections import Softmax as Softmax
from .projections import Sparsemax as Sparsemax

# rounding trained networks
from .rounding import LayerProblem as LayerProblem
from .rounding import Rounding as Rounding

# of beta and of the learning rate
from .schedules import (
    Constant as Constant,
)
from .schedules import (
    CosineDecay as CosineDecay,
)
from .schedules import (
    CosineTo as CosineTo,
)
from .schedules import (
    Geometric as Geometric,
)
from .schedules import (
    GeometricTo as GeometricTo,
)
from .schedules import (
    LinearTo as LinearTo,
)
from .schedules import (
    MultiStepDecay as MultiStepDecay,
)
from .schedules import (
    Schedule as Schedule,
)
from .schedules import (
    StepDecay as StepDecay,
)
from .training import Collector as Collector

__version__: str
