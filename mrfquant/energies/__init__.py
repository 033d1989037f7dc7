"""Energies: models of the expected loss around a labelling."""

from mrfquant.energies.base import Energy
from mrfquant.energies.pairwise import PairwiseEnergy
from mrfquant.energies.priors import CodeLength, LabelPrior, Prior
from mrfquant.energies.sum import SumOf
from mrfquant.energies.taylor import FirstOrderTaylor

__all__ = [
    "CodeLength",
    "Energy",
    "FirstOrderTaylor",
    "LabelPrior",
    "PairwiseEnergy",
    "Prior",
    "SumOf",
]
