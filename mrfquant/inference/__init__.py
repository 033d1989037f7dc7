"""Solvers: each minimises an energy over the labels of a network's parameters."""

import mrfquant.inference.optimizers  # noqa: F401 - registers torch's optimizers with gin
from mrfquant.inference.base import Inference
from mrfquant.inference.latent import BinaryConnect, LatentInference, ProxQuant, StraightThrough
from mrfquant.inference.mean_field import MeanField
from mrfquant.inference.projected import (
    MirrorDescent,
    ProjectedInference,
    ProximalICM,
    ProximalMeanField,
    SparsemaxPGD,
)
from mrfquant.inference.reference import Reference

__all__ = [
    "BinaryConnect",
    "Inference",
    "LatentInference",
    "MeanField",
    "MirrorDescent",
    "ProjectedInference",
    "ProxQuant",
    "ProximalICM",
    "ProximalMeanField",
    "Reference",
    "SparsemaxPGD",
    "StraightThrough",
]
