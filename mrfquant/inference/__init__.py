"""Solvers: each minimises an energy over the parameters of a network."""

from mrfquant.inference.base import Inference
from mrfquant.inference.reference import Reference

__all__ = ["Inference", "Reference"]
