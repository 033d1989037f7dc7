"""Every solver, energy, projection and solver of fields of the package keeps its contract."""

import functools
import inspect
import itertools

import pytest
import torch

import mrfquant.energies
import mrfquant.inference
import mrfquant.mrf
import mrfquant.projections
from mrfquant.energies import (
    CodeLength,
    Energy,
    FirstOrderTaylor,
    LabelPrior,
    PairwiseEnergy,
    SumOf,
)
from mrfquant.errors import BadInput
from mrfquant.inference import (
    BinaryConnect,
    Inference,
    MeanField,
    MirrorDescent,
    ProjectedInference,
    ProximalICM,
    ProximalMeanField,
    ProxQuant,
    Reference,
    SparsemaxPGD,
    StraightThrough,
)
from mrfquant.labelling import Labelling
from mrfquant.mrf import (
    ICM,
    AlphaExpansion,
    Annealing,
    BeliefPropagation,
    BranchAndBound,
    DualAscent,
    Enumeration,
    FactorGraph,
    FieldSolver,
    Gibbs,
    IteratedDescent,
    JunctionTree,
    LocalSearch,
    Portfolio,
    Relaxation,
    SequentialMeanField,
    Toulbar2,
    TreeReweighted,
    toulbar2,
)
from mrfquant.mrf.energy import FactorGraphEnergy
from mrfquant.projections import Hardmax, Projection, Softmax, Sparsemax
from mrfquant.rounding import Rounded
from mrfquant.schedules import Geometric, GeometricTo
from mrfquant.testing import EnergyContract, FieldSolverContract, InferenceContract, ProjectionContract
from mrfquant.testing.contract import LEVEL_SETS
from mrfquant.testing.fields import FEW, THIRD


class PlanesOnly(Projection):
    """The exact softmax in two methods."""

    def planes(self, aux, beta, out=None):
        return Softmax().planes(aux, beta, out)

    def planes_vjp(self, u, g, beta, aux):
        return u * (g - (u * g).sum(0)) * beta


class TestProjectedInference(InferenceContract):
    part = ProjectedInference
    settings = {"projection": PlanesOnly(), "beta": Geometric(rho=1.02, interval=1)}
    level_sets = ((-1, 1),)  # where the pair form is made of the planes; with more levels it is PMF


class TestProximalMeanField(InferenceContract):
    part = ProximalMeanField


class TestProximalMeanFieldExact(InferenceContract):
    part = ProximalMeanField
    settings = {"jacobian": "exact", "beta": Geometric(rho=1.02, interval=1)}


class TestProximalMeanFieldStraightThrough(InferenceContract):
    part = ProximalMeanField
    settings = {"jacobian": "straight_through"}


class TestProximalMeanFieldWithoutAuxiliary(InferenceContract):
    part = ProximalMeanField
    settings = {"auxiliary": False, "beta": GeometricTo(end=100.0, start=1.8)}


class TestSparsemaxPGD(InferenceContract):
    part = SparsemaxPGD


class TestSparsemaxPGDWithoutAuxiliary(InferenceContract):
    part = SparsemaxPGD
    settings = {"auxiliary": False}


class TestProximalICM(InferenceContract):
    part = ProximalICM


class TestMirrorDescent(InferenceContract):
    part = MirrorDescent


class TestMirrorDescentInWells(InferenceContract):
    part = MirrorDescent
    settings = {"form": "wells"}

    def _check_weights(self, model, inference):
        """Weights in wells may lie beyond the levels; they are the mean of the distribution all the same."""
        for _ in range(5):
            self.run(model, inference, 10)
            for block, x in inference.items():
                torch.testing.assert_close(inference.distribution(block, x).mean(), block.w, atol=1e-6, rtol=0)


class TestMeanField(InferenceContract):
    part = MeanField
    settings = {"damping": 0.97, "beta": GeometricTo(start=20.0, end=200.0)}


def on_planes(contract):
    """The same contract with a variable for each label, as in the paper."""
    settings = {**contract.settings, "form": "planes"}
    return type(f"{contract.__name__}OnPlanes", (contract,), {"settings": settings, "level_sets": LEVEL_SETS[1:]})


TestProximalMeanFieldOnPlanes = on_planes(TestProximalMeanField)
TestProximalMeanFieldExactOnPlanes = on_planes(TestProximalMeanFieldExact)
TestProximalMeanFieldStraightThroughOnPlanes = on_planes(TestProximalMeanFieldStraightThrough)
TestSparsemaxPGDOnPlanes = on_planes(TestSparsemaxPGD)
TestProximalICMOnPlanes = on_planes(TestProximalICM)
TestMirrorDescentOnPlanes = on_planes(TestMirrorDescent)
TestMeanFieldOnPlanes = on_planes(TestMeanField)


class TestBinaryConnect(InferenceContract):
    part = BinaryConnect


class TestProxQuant(InferenceContract):
    part = ProxQuant
    settings = {"reg_rate": 0.05, "epoch": 5}


class TestStraightThrough(InferenceContract):
    part = StraightThrough
    labelling = {"scale": "layer"}


class TestStraightThroughInGroups(TestStraightThrough):
    labelling = {"scale": "group", "group_size": 3}


class TestRounded(InferenceContract):
    part = Rounded

    def test_the_loss_of_the_rounded_network_falls_on_a_convex_problem(self, levels):
        """Its labels were assigned, and stay."""
        model, inference = self.solver(levels)
        before = inference.labelling.labelled.w.clone()
        self.run(model, inference, 10)
        assert torch.equal(inference.labelling.labelled.w, before)


class TestReference(InferenceContract):
    part = Reference
    level_sets = (None,)

    def test_a_labelling_without_levels_is_refused(self):
        """The other way round."""
        with pytest.raises(BadInput, match="Reference trains in floating point"):
            self.make(self.problem((-1, 1))[1])


class TestFirstOrderTaylor(EnergyContract):
    part = FirstOrderTaylor


class TestPairwiseEnergy(EnergyContract):
    part = PairwiseEnergy
    settings = {"interval": 1, "samples": None}

    def problem(self, levels, **labelling):
        """A small network, whose curvature the energy gathers in a forward of training."""
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4)).double()
        return model, Labelling(model, list(levels), **labelling)

    def loss(self, model):
        return torch.nn.functional.cross_entropy(model(torch.randn(16, 6, dtype=torch.float64)), torch.arange(16) % 4)


class TestSumOf(TestPairwiseEnergy):
    part = SumOf
    settings = {}

    def make(self, labelling, **settings):
        parts = [FirstOrderTaylor(), PairwiseEnergy(interval=1, samples=None)]
        return SumOf(**{"energies": parts, "weights": [0.5, Geometric(rho=1.1)], **settings})


class TestLabelPrior(EnergyContract):
    part = LabelPrior
    settings = {"costs": {1: 0.5}}
    constant = True


class TestCodeLength(EnergyContract):
    part = CodeLength
    settings = {"interval": 1}


class TestFactorGraphEnergy(EnergyContract):
    part = FactorGraphEnergy
    gin_name = None  # it is built around a graph, by Relaxation

    def make(self, labelling):
        return FactorGraphEnergy(chain(tuple(block.d for block in labelling.blocks for _ in range(block.m))))


@functools.cache
def chain(labels):
    """A chain of variables with so many labels, with fields and random couplings."""
    random = torch.Generator().manual_seed(0)
    unary = [([j], torch.randn(d, generator=random)) for j, d in enumerate(labels)]
    pairs = [([j, j + 1], torch.randn(*d, generator=random)) for j, d in enumerate(itertools.pairwise(labels))]
    return FactorGraph(labels, unary + pairs)


def identity(u):
    """(d, d, m)."""
    return torch.eye(len(u), dtype=u.dtype)[..., None].expand(-1, -1, u.shape[1])


def outer(u):
    """u uᵀ of every variable: (d, d, m)."""
    return u[:, None] * u[None]


class TestSoftmax(ProjectionContract):
    part = Softmax

    def jacobian(self, u, aux, beta):
        """The authors': beta (I - u uᵀ)."""
        return beta * (identity(u) - outer(u))


class TestSoftmaxExact(ProjectionContract):
    part = Softmax
    settings = {"jacobian": "exact"}


class TestSoftmaxStraightThrough(ProjectionContract):
    part = Softmax
    settings = {"jacobian": "straight_through"}

    def jacobian(self, u, aux, beta):
        return beta * identity(u)


class TestSoftmaxBetween(ProjectionContract):
    part = Softmax
    settings = {"jacobian": 0.3}

    def jacobian(self, u, aux, beta):
        return beta * (0.7 * identity(u) + 0.3 * len(u) * (identity(u) * u - outer(u)))


class TestSparsemax(ProjectionContract):
    part = Sparsemax


class TestHardmax(ProjectionContract):
    part = Hardmax
    at_small_beta = "vertex"

    def jacobian(self, u, aux, beta):
        """Appendix B.1's, I - 1 1ᵀ / d, 0 where the largest ũ leads by more than 1."""
        lead = aux.topk(2, dim=0).values.diff(dim=0).abs()
        return (identity(u) - 1 / len(u)) * (lead <= 1)


class TestEnumeration(FieldSolverContract):
    part = Enumeration


class TestJunctionTree(FieldSolverContract):
    part = JunctionTree


class TestBeliefPropagation(FieldSolverContract):
    part = BeliefPropagation
    settings = {"damping": 0.3}
    fields = THIRD
    exact_on_trees = True


class TestResidualBeliefPropagation(FieldSolverContract):
    part = BeliefPropagation
    settings = {"schedule": "residual"}
    fields = THIRD
    exact_on_trees = True


class TestMaxProduct(FieldSolverContract):
    part = BeliefPropagation
    settings = {"mode": "max", "damping": 0.3}
    fields = THIRD
    exact_on_trees = True


class TestTreeReweighted(FieldSolverContract):
    part = TreeReweighted
    fields = THIRD
    exact_on_trees = True


class TestSequentialMeanField(FieldSolverContract):
    part = SequentialMeanField
    fields = THIRD
    monotone = True


class TestAnnealedMeanField(FieldSolverContract):
    part = SequentialMeanField
    settings = {"beta": Geometric(1.5, 1, 100.0, 0.1)}
    fields = THIRD


class TestICM(FieldSolverContract):
    part = ICM
    monotone = True


class TestLocalSearch(FieldSolverContract):
    part = LocalSearch
    settings = {"patience": 2, "warm_up": 20}
    fields = THIRD
    exact_on_trees = True
    monotone = True


class TestGibbs(FieldSolverContract):
    part = Gibbs
    fields = THIRD


class TestAlphaExpansion(FieldSolverContract):
    part = AlphaExpansion
    fields = THIRD
    monotone = True


class TestDualAscent(FieldSolverContract):
    part = DualAscent
    exact_on_trees = True
    monotone = True


class TestBranchAndBound(FieldSolverContract):
    part = BranchAndBound
    exact_on_trees = True
    monotone = True


class TestAnnealing(FieldSolverContract):
    part = Annealing
    fields = THIRD
    exact_on_trees = True
    monotone = True


class TestIteratedDescent(FieldSolverContract):
    part = IteratedDescent
    fields = THIRD
    exact_on_trees = True
    monotone = True


@pytest.mark.skipif(not toulbar2.available(), reason="needs pytoulbar2")
class TestToulbar2(FieldSolverContract):
    part = Toulbar2
    fields = THIRD
    iterations = 1
    exact_on_trees = True
    monotone = True


class TestPortfolio(FieldSolverContract):
    part = Portfolio
    fields = THIRD
    exact_on_trees = True
    monotone = True


class TestRelaxation(FieldSolverContract):
    part = Relaxation
    fields = THIRD
    iterations = 15


class TestRelaxationOfMeanField(TestRelaxation):
    fields = FEW
    settings = {"inference": functools.partial(MeanField, damping=0.5)}


class TestRelaxationOfMirrorDescent(TestRelaxation):
    fields = FEW
    settings = {"inference": MirrorDescent}


class TestRelaxationOfICM(TestRelaxation):
    fields = FEW
    settings = {"inference": ProximalICM}


class TestRelaxationOfPGD(TestRelaxation):
    fields = FEW
    settings = {"inference": SparsemaxPGD}


BASES = {
    Inference: mrfquant.inference,
    Energy: mrfquant.energies,
    Projection: mrfquant.projections,
    FieldSolver: mrfquant.mrf,
}


@pytest.mark.parametrize("base", BASES)
def test_no_part_is_left_out(base):
    contracts = [c for c in globals().values() if inspect.isclass(c) and hasattr(c, "part")]
    named = [getattr(BASES[base], name) for name in dir(BASES[base])]  # a package may import its names when asked for
    found = [part for part in named if inspect.isclass(part) and issubclass(part, base)]
    parts = {part.__name__ for part in found if not inspect.isabstract(part) and part.__init__ is not base.__init__}
    assert parts - {"LatentInference"} <= {c.part.__name__ for c in contracts}
