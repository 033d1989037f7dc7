"""toulbar2, a solver of cost function networks, on a field: what the least energies found here are compared with."""

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from mrfquant.errors import BadInput
from mrfquant.mrf import FactorGraph, Result
from mrfquant.mrf.uai import write_model

DIGITS = 6  # of costs, after the point


def solve_by_toulbar2(graph: FactorGraph, evidence: Mapping[int, int], seconds: float) -> Result:
    """Return the best labelling that toulbar2 finds in so many whole seconds; bound and marginals are left out."""
    try:
        from pytoulbar2 import CFN
    except ImportError:
        raise BadInput("toulbar2 is not installed: pip install pytoulbar2") from None
    reduced, kept = graph.condition(evidence)
    labels = torch.zeros_like(graph.cardinalities)
    for v, label in evidence.items():
        labels[v] = label
    network = CFN(resolution=DIGITS, verbose=-1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "field.uai"
        write_model(path, reduced)
        network.CFN.read(str(path))
    started = time.perf_counter()
    found = network.Solve(timeLimit=math.ceil(seconds))
    listed = [found[0]] if found else [solution for _, solution in network.GetSolutions()]
    elapsed = time.perf_counter() - started
    energy = math.inf
    if listed:
        labels[kept] = torch.tensor(list(listed[-1]))
        energy = graph.energy(labels).item()
    return Result(labels, energy, graph.one_hot(labels), None, None, "time", 0, elapsed)
