"""Contract tests that the author of a solver or an energy inherits; needs pytest, which nothing else here does.

from mrfquant.testing import InferenceContract

class TestMySolver(InferenceContract):
    part = MySolver
"""

from mrfquant.testing.contract import Contract
from mrfquant.testing.energy import EnergyContract
from mrfquant.testing.inference import InferenceContract

__all__ = ["Contract", "EnergyContract", "InferenceContract"]
