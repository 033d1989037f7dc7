"""The solver of docs/examples/own_solver.py samples, and keeps the contract."""

import importlib.util
from pathlib import Path

from mrfquant.schedules import Constant
from mrfquant.testing import InferenceContract

_file = Path(__file__).parents[2] / "docs" / "examples" / "own_solver.py"
_spec = importlib.util.spec_from_file_location("own_solver", _file)
own_solver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(own_solver)


class TestBayesBiNN(InferenceContract):
    part = own_solver.BayesBiNN
    settings = {"beta": Constant(1000.0)}
    level_sets = ((-1, 1),)
