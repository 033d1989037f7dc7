"""Solvers: each minimises an energy over the labels of a network's parameters."""

from mrfquant.inference.base import Inference
from mrfquant.inference.latent import BinaryConnect, LatentInference, ProxQuant, StraightThrough
from mrfquant.inference.mean_field import MeanField
from mrfquant.inference.optimizers import ByShape
from mrfquant.inference.projected import ProjectedInference
from mrfquant.inference.proximal import MirrorDescent, ProximalICM, ProximalMeanField, SparsemaxPGD
from mrfquant.inference.reference import Reference

__all__ = [
    "BinaryConnect",
    "ByShape",
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
