"""The public names of mrfquant and where they live; `__init__.py` imports each when it is first asked for."""

# a network's parameters as variables
from .labelling import (
    Block as Block,
    Labelling as Labelling,
    LevelSet as LevelSet,
    Trellis as Trellis,
    uniform as uniform,
    weights_of as weights_of,
)

# solvers: what trains, and the bases to write one on
from .inference import (
    ProximalMeanField as ProximalMeanField,
    SparsemaxPGD as SparsemaxPGD,
    ProximalICM as ProximalICM,
    MirrorDescent as MirrorDescent,
    MeanField as MeanField,
    BinaryConnect as BinaryConnect,
    ProxQuant as ProxQuant,
    StraightThrough as StraightThrough,
    Reference as Reference,
    Inference as Inference,
    LatentInference as LatentInference,
    ProjectedInference as ProjectedInference,
    ByShape as ByShape,
)

# models of the loss, and the distribution that u stands for
from .energies import (
    Energy as Energy,
    FirstOrderTaylor as FirstOrderTaylor,
    PairwiseEnergy as PairwiseEnergy,
    SumOf as SumOf,
    Prior as Prior,
    LabelPrior as LabelPrior,
    CodeLength as CodeLength,
)
from .inference.entropies import Entropy as Entropy, TreeEntropy as TreeEntropy

# what labels may be together, and how they are relaxed
from .families import (
    Distribution as Distribution,
    Family as Family,
    Gradient as Gradient,
    Independent as Independent,
)

# maps onto the simplex
from .projections import (
    Hardmax as Hardmax,
    Line as Line,
    Projection as Projection,
    Softmax as Softmax,
    Sparsemax as Sparsemax,
)

# schedules of beta and of the learning rate
from .schedules import (
    Constant as Constant,
    CosineDecay as CosineDecay,
    Geometric as Geometric,
    GeometricTo as GeometricTo,
    LinearTo as LinearTo,
    MultiStepDecay as MultiStepDecay,
    Schedule as Schedule,
    StepDecay as StepDecay,
)

# parts of your own for gin files
from .config.settings import (
    Count as Count,
    Fraction as Fraction,
    NonNegative as NonNegative,
    Positive as Positive,
    configurable as configurable,
)
from .models import network as network
from .data import (
    Augmentation as Augmentation,
    Dataset as Dataset,
    Images as Images,
    Loaders as Loaders,
    Pairs as Pairs,
    Split as Split,
    Tokens as Tokens,
    dataset as dataset,
)
from .metric import Metric as Metric
from .objectives import (
    CrossEntropy as CrossEntropy,
    Distillation as Distillation,
    NextToken as NextToken,
    Objective as Objective,
    Regression as Regression,
)
from .data.torchvision_import import import_torchvision as import_torchvision
from .training import (
    Collector as Collector,
    Hook as Hook,
    Samples as Samples,
    TensorBoard as TensorBoard,
)
from .training.launch import launch as launch
from .finetuning import Finetuned as Finetuned, finetune as finetune, refresh_batch_norm as refresh_batch_norm
from .errors import BadInput as BadInput, BadSetting as BadSetting, RunFailed as RunFailed

# rounding trained networks, smaller networks, packed networks
from .rounding import (
    LayerProblem as LayerProblem,
    Rounded as Rounded,
    Rounding as Rounding,
    LayerSolver as LayerSolver,
    round_network as round_network,
)
from .language import RoundedLanguageModel as RoundedLanguageModel, round_language_model as round_language_model
from .pruning import prune as prune
from .packing import PackedNetwork as PackedNetwork, load as load, pack as pack, pack_model as pack_model
from .packing.onnx_export import export_onnx as export_onnx

# explicit fields and their solvers
from .mrf import (
    AlphaExpansion as AlphaExpansion,
    Annealing as Annealing,
    BeliefPropagation as BeliefPropagation,
    BranchAndBound as BranchAndBound,
    CoordinateDescent as CoordinateDescent,
    DualAscent as DualAscent,
    Enumeration as Enumeration,
    FactorGraph as FactorGraph,
    Gibbs as Gibbs,
    ICM as ICM,
    IteratedDescent as IteratedDescent,
    JunctionTree as JunctionTree,
    LocalSearch as LocalSearch,
    Portfolio as Portfolio,
    Relaxation as Relaxation,
    Result as Result,
    SequentialMeanField as SequentialMeanField,
    FieldSolver as FieldSolver,
    Toulbar2 as Toulbar2,
    TreeReweighted as TreeReweighted,
    best_labellings as best_labellings,
    crf_belief_propagation as crf_belief_propagation,
    crf_mean_field as crf_mean_field,
    diverse_labellings as diverse_labellings,
    grid_edges as grid_edges,
    ising as ising,
    log_partition as log_partition,
    marginal_map as marginal_map,
    potts as potts,
    pseudo_likelihood as pseudo_likelihood,
    sample_log_z as sample_log_z,
    solve as solve,
    with_evidence as with_evidence,
)
from .mrf.uai import read_evidence as read_evidence, read_model as read_model, write_model as write_model

__version__: str
