"""The solver of docs/examples/own_solver.py samples, and keeps the contract."""

import functools
import importlib.util
from pathlib import Path

import torch

from mrfquant.inference import ProxQuant
from mrfquant.labelling import Labelling
from mrfquant.schedules import Constant
from mrfquant.testing import InferenceContract

_file = Path(__file__).parents[2] / "docs" / "examples" / "own_solver.py"
_spec = importlib.util.spec_from_file_location("own_solver", _file)
own_solver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(own_solver)


def test_its_beta_is_in_the_log():
    model = torch.nn.Linear(4, 3)
    adam = functools.partial(torch.optim.Adam, lr=0.1)
    solver = own_solver.BayesBiNN(Labelling(model, [-1, 1]), adam, beta=Constant(1000.0))
    assert solver.settings() == {"learning_rate": 0.1, "beta": 1000.0}
    without = ProxQuant(Labelling(torch.nn.Linear(4, 3), [-1, 1]), adam)
    assert without.settings() == {"learning_rate": 0.1}  # it has none


class TestBayesBiNN(InferenceContract):
    part = own_solver.BayesBiNN
    settings = {"beta": Constant(1000.0)}
    level_sets = ((-1, 1),)
