"""mrfquant: quantizing neural networks by inference in Markov random fields.

What is listed here is the public interface; `mrfquant.testing` (contract tests, needs pytest) and the commands that
`python -m mrfquant` lists belong to it, too. Everything else may change without notice.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    # a network's parameters as variables
    "labelling": ("Block", "Labelling", "LevelSet", "uniform"),
    # solvers: what trains, and the bases to write one on
    "inference": (
        "ProximalMeanField",
        "SparsemaxPGD",
        "ProximalICM",
        "MirrorDescent",
        "MeanField",
        "BinaryConnect",
        "ProxQuant",
        "Reference",
        "Rounded",
        "Inference",
        "LatentInference",
        "ProjectedInference",
    ),
    # models of the loss
    "energies": ("Energy", "FirstOrderTaylor", "PairwiseEnergy"),
    # the distribution that u stands for
    "entropies": ("Entropy", "TreeEntropy"),
    # maps onto the simplex
    "projections": ("Hardmax", "Projection", "Softmax", "Sparsemax"),
    # of beta and of the learning rate
    "schedules": (
        "Constant",
        "CosineDecay",
        "CosineTo",
        "Geometric",
        "GeometricTo",
        "LinearTo",
        "MultiStepDecay",
        "Schedule",
        "StepDecay",
    ),
    # parts of your own for gin files
    "settings": ("Count", "Fraction", "NonNegative", "Positive", "configurable"),
    "models": ("network",),
    "data": ("Dataset", "Split", "dataset"),
    "data.torchvision_import": ("import_torchvision",),
    "training": ("Collector",),
    "errors": ("BadInput", "BadSetting", "RunFailed"),
    # rounding trained networks
    "rounding": ("LayerProblem", "Rounding"),
    # packed networks
    "packing": ("load", "pack_model"),
    # explicit fields and their solvers
    "mrf": (
        "BeliefPropagation",
        "CoordinateDescent",
        "Enumeration",
        "FactorGraph",
        "ICM",
        "JunctionTree",
        "LocalSearch",
        "Relaxation",
        "Result",
        "SequentialMeanField",
        "Solver",
        "TreeReweighted",
        "ising",
        "potts",
        "solve",
    ),
    "mrf.uai": ("read_evidence", "read_model", "write_model"),
}
_HOME = {name: f"mrfquant.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: importing mrfquant by itself does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'mrfquant' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
