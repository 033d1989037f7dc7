"""Each check of the contracts fails for a part that breaks what it checks, and only a part that does."""

import inspect
from contextlib import contextmanager

import pytest
import torch

from mrfquant.config.settings import configurable
from mrfquant.energies import FirstOrderTaylor
from mrfquant.errors import BadInput
from mrfquant.inference import Inference, ProximalMeanField
from mrfquant.testing import EnergyContract, InferenceContract


class Solver(ProximalMeanField):
    """A good solver to spoil; not a name of gin's."""


class Ascends(Solver):
    def gradient(self, block, x):
        return -super().gradient(block, x)


class RoundsBesideTheLevels(Solver):
    def labels(self, block, x):
        block.q.mul_(1 + 1e-6)
        return super().labels(block, x)


class StaysRounded(Solver):
    @contextmanager
    def rounded(self):
        for block, x in self.items():
            block.write_labels(self.labels(block, x))
        yield


class LeavesTheSimplex(Solver):
    def marginals(self, block, x):
        return 1.01 * super().marginals(block, x)


class ForgetsItsState(Solver):
    """Remembers its last gradient outside the state that it saves."""

    last = 0.0

    def gradient(self, block, x):
        g = super().gradient(block, x)
        g, self.last = g + self.last, 0.5 * g.mean()
        return g


class MindsTheOrder(Solver):
    def gradient(self, block, x):
        return super().gradient(block, x) * torch.linspace(1, 2, block.m, dtype=x.dtype)


class TakesAnyState(Solver):
    def load_solution(self, solution):
        self.iteration = solution["iteration"]


class NeedsNoLevels(Solver):
    needs_levels = False


class Unregistered(Solver):
    pass


@configurable
class BindsTheLabelling(ProximalMeanField):
    def __init__(self, labelling, optimizer):
        super().__init__(labelling, optimizer)


@configurable(supplied=["labelling", "optimizer"])
class TakesAnySetting(ProximalMeanField):
    def __init__(self, labelling, optimizer, speed=1.0):
        super().__init__(labelling, optimizer)


class Energy(FirstOrderTaylor):
    pass


class HalfTheGradient(Energy):
    def value(self, block, u):
        return 2 * super().value(block, u)


class UsesUpTheGradient(Energy):
    def gradient(self, block, u):
        g = super().gradient(block, u)
        block.g.zero_()
        return g


class AnotherGradientOnWeights(Energy):
    def weight_gradient(self, block):
        return 2 * block.g


@configurable
class EnergyOfAnySetting(FirstOrderTaylor):
    def __init__(self, speed=1.0):
        pass


BROKEN = {
    InferenceContract: {
        "test_the_loss_of_the_rounded_network_falls_on_a_convex_problem": Ascends,
        "test_rounded_weights_are_exactly_on_their_levels": RoundsBesideTheLevels,
        "test_rounding_ends_with_its_block": StaysRounded,
        "test_u_stays_in_the_simplex_and_w_is_its_mean": LeavesTheSimplex,
        "test_saved_and_loaded_it_goes_on_to_the_bit": ForgetsItsState,
        "test_the_order_of_the_parameters_plays_no_role": MindsTheOrder,
        "test_the_state_of_a_smaller_network_is_refused": TakesAnyState,
        "test_a_labelling_without_levels_is_refused": NeedsNoLevels,
        "test_gin_files_can_name_it_and_cannot_bind_what_the_framework_supplies": BindsTheLabelling,
        "test_a_setting_of_a_wrong_type_is_refused_by_name": TakesAnySetting,
    },
    EnergyContract: {
        "test_the_gradient_is_the_derivative_of_the_value": HalfTheGradient,
        "test_looking_at_it_changes_nothing": UsesUpTheGradient,
        "test_a_gradient_on_the_weights_says_the_same_as_that_on_u": AnotherGradientOnWeights,
        "test_gin_files_can_name_it_and_cannot_bind_what_the_framework_supplies": Energy,
        "test_a_setting_of_a_wrong_type_is_refused_by_name": EnergyOfAnySetting,
    },
}
CASES = [(contract, check, part) for contract, broken in BROKEN.items() for check, part in broken.items()]
LEVELS = [(-1, 1), (-1, 0, 1), (-2, -1, 1, 2)]


def run(contract, check, part, levels):
    """Make one check of a contract as pytest would."""
    test = getattr(type("TestPart", (contract,), {"part": part})(), check)
    test(levels) if "levels" in inspect.signature(test).parameters else test()


@pytest.mark.parametrize("levels", LEVELS, ids=["2", "3", "4"])
@pytest.mark.parametrize(("contract", "check", "part"), CASES, ids=[f"{p.__name__}" for _, _, p in CASES])
def test_a_broken_part_fails_its_check(contract, check, part, levels):
    with pytest.raises((AssertionError, BadInput, ValueError, pytest.fail.Exception)):
        run(contract, check, part, levels)


@pytest.mark.parametrize(("contract", "check", "part"), CASES, ids=[f"{p.__name__}" for _, _, p in CASES])
def test_a_good_part_passes_the_same_check(contract, check, part):
    good = ProximalMeanField if issubclass(part, Inference) else FirstOrderTaylor
    run(contract, check, good, (-1, 1))


@pytest.mark.parametrize("contract", BROKEN)
def test_every_check_has_a_part_that_fails_it(contract):
    assert {name for name in dir(contract) if name.startswith("test_")} == set(BROKEN[contract])


def test_a_part_that_gin_does_not_know_fails():
    with pytest.raises(ValueError, match="Unregistered"):
        run(InferenceContract, CASES[8][1], Unregistered, (-1, 1))
