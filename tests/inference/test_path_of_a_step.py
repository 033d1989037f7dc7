"""A step of PMF is short: it runs through few functions of the package, in few files."""

import functools
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import mrfquant
from mrfquant.inference import ProximalMeanField
from mrfquant.kernels import dispatch
from mrfquant.labelling import Labelling
from mrfquant.models import LeNet300
from mrfquant.schedules import Geometric

PACKAGE = str(Path(mrfquant.__file__).parent)


def path_of_a_step(solver, model):
    """The functions of the package that a step calls, each with its file."""
    functional.cross_entropy(model(torch.randn(10, 1, 28, 28)), torch.arange(10)).backward()
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.add((frame.f_code.co_filename, frame.f_code.co_name, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        solver.step()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.skipif(dispatch.loops("simplex") is None, reason="numba is not installed")
def test_a_step_runs_through_few_functions():
    model = LeNet300((1, 28, 28), 10)
    adam = functools.partial(torch.optim.Adam, lr=1e-3, fused=True)
    solver = ProximalMeanField(Labelling(model, [-1, 1]), adam, beta=Geometric(rho=1.2))  # the paper's
    for _ in range(3):
        called = path_of_a_step(solver, model)
    listing = "\n".join(f"{Path(file).name}: {name}" for file, name, _ in sorted(called))
    assert len(called) <= 22, listing
    assert len({file for file, *_ in called}) <= 8, listing
