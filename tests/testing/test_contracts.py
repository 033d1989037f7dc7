"""Every solver and every energy of the package keeps its contract."""

import inspect

import pytest
import torch

import mrfquant.energies
import mrfquant.inference
from mrfquant.energies import Energy, FirstOrderTaylor, PairwiseEnergy
from mrfquant.errors import BadInput
from mrfquant.inference import (
    BinaryConnect,
    Inference,
    MeanField,
    MirrorDescent,
    ProximalICM,
    ProximalMeanField,
    ProxQuant,
    Reference,
    Rounded,
    SparsemaxPGD,
)
from mrfquant.labelling import Labelling
from mrfquant.mrf import FactorGraph
from mrfquant.mrf.energy import FactorGraphEnergy
from mrfquant.schedules import Geometric, GeometricTo
from mrfquant.testing import EnergyContract, InferenceContract


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


class TestMeanField(InferenceContract):
    part = MeanField
    settings = {"damping": 0.97, "beta": GeometricTo(start=20.0, end=200.0)}


class TestBinaryConnect(InferenceContract):
    part = BinaryConnect


class TestProxQuant(InferenceContract):
    part = ProxQuant
    settings = {"reg_rate": 0.05, "epoch": 5}


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

    def problem(self, levels):
        """A small network, whose curvature the energy gathers in a forward of training."""
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4)).double()
        return model, Labelling(model, list(levels))

    def make(self, labelling, **settings):
        energy = super().make(labelling, **settings)
        energy.attach(labelling)
        labelling.model(torch.randn(16, 6, dtype=torch.float64))
        return energy


class TestFactorGraphEnergy(EnergyContract):
    part = FactorGraphEnergy
    gin_name = None  # it is built around a graph, by Relaxation

    def make(self, labelling):
        """Of a chain of all variables, with fields and random couplings."""
        m, d = len(labelling), labelling.blocks[0].d
        random = torch.Generator().manual_seed(0)
        unary = [([j], torch.randn(d, generator=random)) for j in range(m)]
        chain = [([j, j + 1], torch.randn(d, d, generator=random)) for j in range(m - 1)]
        return FactorGraphEnergy(FactorGraph([d] * m, unary + chain))


@pytest.mark.parametrize(("base", "module"), [(Inference, mrfquant.inference), (Energy, mrfquant.energies)])
def test_no_part_is_left_out(base, module):
    contracts = [c for c in globals().values() if inspect.isclass(c) and hasattr(c, "part")]
    parts = {name for name in module.__all__ if issubclass(part := getattr(module, name), base)
             and not inspect.isabstract(part) and part.__init__ is not base.__init__}  # fmt: skip
    assert parts - {"LatentInference", "ProjectedInference"} <= {c.part.__name__ for c in contracts}
