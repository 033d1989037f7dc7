"""Each check of the contracts fails for a part that breaks what it checks, and only a part that does."""

import dataclasses
import functools
import inspect
from contextlib import contextmanager

import pytest
import torch

from mrfquant.config.settings import configurable
from mrfquant.energies import FirstOrderTaylor
from mrfquant.errors import BadInput
from mrfquant.families import Gradient
from mrfquant.inference import ProximalMeanField
from mrfquant.mrf import Gibbs, SequentialMeanField, TreeReweighted
from mrfquant.projections import Projection, Softmax
from mrfquant.testing import EnergyContract, FieldSolverContract, InferenceContract, ProjectionContract
from mrfquant.testing.fields import THIRD


class Solver(ProximalMeanField):
    """A good solver to spoil; not a name of gin's."""


class Ascends(Solver):
    def update(self, block, x):
        return -super().update(block, x)


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


class LeavesTheLevels(Solver):
    def write(self, block, x):
        super().write(block, x)
        block.w.mul_(1.01)


class IgnoresScales(Solver):
    def write(self, block, x):
        super().write(block, x)
        if block.scale is not None:
            block.w.div_(block.scale)


class ForgetsItsState(Solver):
    """Remembers its last gradient outside the state that it saves."""

    last = 0.0

    def update(self, block, x):
        g = super().update(block, x)
        g, self.last = g + self.last, 0.5 * g.mean()
        return g


class KeepsItsState(ForgetsItsState):
    """The same, which it saves."""

    def own_state(self):
        return {"last": self.last}

    def load_own_state(self, state):
        self.last = state["last"]


class Samples(Solver):
    """Computes with weights that are drawn from its distribution."""

    samples = True

    def write(self, block, x):
        super().write(block, x)
        block.write_labels(super().distribution(block, x).sample())

    def update(self, block, x):
        super().write(block, x)  # the family reads its mean off the weights
        return super().update(block, x)

    def distribution(self, block, x):
        return None


class MindsTheOrder(Solver):
    def update(self, block, x):
        return super().update(block, x) * torch.linspace(1, 2, block.m, dtype=x.dtype)


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
    """A good energy to spoil."""


class HalfTheGradient(Energy):
    def value(self, p):
        return 2 * super().value(p)


class UsesUpTheGradient(Energy):
    def gradient(self, p):
        g = Gradient(weights=p.block.g.clone())
        p.block.g.zero_()
        return g


class MarginalsOfOneLabel(Energy):
    def gradient(self, p):
        return Gradient(weights=p.block.g, marginals=torch.zeros(1, p.block.m))


class RunningAverage(Energy):
    """A good energy with a memory: the first order of averaged gradients."""

    def attach(self, labelling):
        self.averages = {block.start: torch.zeros_like(block.g) for block in labelling.blocks}

    def begin_step(self, iteration, distributions):
        for p in distributions():
            self.averages[p.block.start].lerp_(p.block.g, 0.5)

    def value(self, p):
        return self.averages[p.block.start] @ p.mean()

    def gradient(self, p):
        return Gradient(weights=self.averages[p.block.start].clone())

    def state_dict(self):
        return {"averages": self.averages}

    def load_state_dict(self, state):
        self.averages = state["averages"]


class ForgetsItsAverage(RunningAverage):
    def state_dict(self):
        return {}


class SavesMoreThanData(RunningAverage):
    def state_dict(self):
        return {"averages": self.averages, "device": functools.partial(print)}


class LendsItsAverage(RunningAverage):
    def gradient(self, p):
        return Gradient(weights=self.averages[p.block.start])


class TakesTheGradientAway(RunningAverage):
    def begin_step(self, iteration, distributions):
        super().begin_step(iteration, distributions)
        for p in distributions():
            p.block.g.zero_()


class CountsEveryBeginning(Energy):
    """A memory that nobody is told of."""

    count = 0

    def begin_step(self, iteration, distributions):
        self.count += 1

    def gradient(self, p):
        return Gradient(weights=self.count * p.block.g)


class StaysAtItsFirstStep(Energy):
    def __init__(self):
        self.kept = {}

    def gradient(self, p):
        return Gradient(weights=self.kept.setdefault(p.block.start, p.block.g.clone()).clone())

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]


class AStepBehind(RunningAverage):
    """At each step it answers with what the step before has brought."""

    def attach(self, labelling):
        super().attach(labelling)
        self.before = {start: x.clone() for start, x in self.averages.items()}

    def begin_step(self, iteration, distributions):
        self.before = {start: x.clone() for start, x in self.averages.items()}
        super().begin_step(iteration, distributions)

    def gradient(self, p):
        return Gradient(weights=self.before[p.block.start].clone())


@configurable
class EnergyOfAnySetting(FirstOrderTaylor):
    def __init__(self, speed=1.0):
        pass


class Map(Softmax):
    """A good projection to spoil."""

    def __init__(self):
        super().__init__("exact")


class PlanesOnly(Map):
    """The same in two methods."""

    mean, mean_vjp = Projection.mean, Projection.mean_vjp
    weights, weights_vjp = Projection.weights, Projection.weights_vjp
    planes_start = Projection.planes_start


class Overflows(PlanesOnly):
    def planes(self, aux, beta, out=None):
        u = (beta * aux).exp()
        return torch.div(u, u.sum(0), out=out)


class DividesByTheOthers(PlanesOnly):
    def planes_vjp(self, u, g, beta, aux):
        return super().planes_vjp(u, g, beta, aux) / (1 - u)


class MindsAConstant(PlanesOnly):
    def planes(self, aux, beta, out=None):
        return super().planes(aux * (1 + aux[:1].abs()), beta, out)


class MixesVariables(PlanesOnly):
    def planes(self, aux, beta, out=None):
        return super().planes(aux - aux.mean(1, keepdim=True), beta, out)


class PrefersTheFirstLabel(PlanesOnly):
    def planes(self, aux, beta, out=None):
        aux = aux.clone()
        aux[0] += 1 / beta
        return super().planes(aux, beta, out)


class NeverDecides(PlanesOnly):
    def planes(self, aux, beta, out=None):
        return super().planes(aux, min(beta, 50.0) / 10, out)


class NeverUndecided(PlanesOnly):
    def planes(self, aux, beta, out=None):
        return super().planes(aux, beta + 0.1, out)


class StartsElsewhere(PlanesOnly):
    def planes_start(self, u, beta):
        return u / beta


class AnotherProduct(PlanesOnly):
    """The hole that the check is for: a product that forgets one of two terms."""

    def planes_vjp(self, u, g, beta, aux):
        return u * g * beta


class AnotherMean(Map):
    def weights(self, aux, q, beta, out, w):
        super().weights(aux, q, beta, out, w)
        w.mul_(1.01)


class AnotherLine(Map):
    def mean_vjp(self, t, delta, beta, aux, line):
        return 2 * super().mean_vjp(t, delta, beta, aux, line)


class StartsBesideTheLine(Map):
    def mean_start(self, t, line, beta):
        return super().mean_start(t / 2, line, beta)


class OverwritesU(PlanesOnly):
    def planes_vjp(self, u, g, beta, aux):
        return u.mul_(g - (u * g).sum(0)).mul_(beta)


class LeavesOutAlone(PlanesOnly):
    def planes(self, aux, beta, out=None):
        return super().planes(aux, beta)


@configurable
class MapOfAnySetting(Softmax):
    def __init__(self, speed=1.0):
        super().__init__()


class FieldSolver(SequentialMeanField):
    """A good solver of fields to spoil."""


class TwiceTheMarginals(FieldSolver):
    def marginals(self):
        return 2 * super().marginals()


class OneLabelTooMany(FieldSolver):
    def run(self, *args, **kwargs):
        result = super().run(*args, **kwargs)
        return dataclasses.replace(result, labels=result.labels + 1)


class TellsAnotherEnergy(FieldSolver):
    def run(self, *args, **kwargs):
        result = super().run(*args, **kwargs)
        return dataclasses.replace(result, energy=result.energy - 1)


class AboveItsBound(FieldSolver):
    """The hole that the check is for: a lower bound that is none."""

    def log_z(self):
        return super().log_z() + 0.5


class ProvesTooMuch(FieldSolver):
    def bound(self):
        return self.graph.energy(self.labels()).item() + 1


class BelowItsBound(TreeReweighted):
    def log_z(self):
        return super().log_z() - 3


class MixesFactorsUp(TreeReweighted):
    """The hole that the check is for: marginals in the order of the merged graph."""

    def factor_marginals(self):
        return [shares.roll(1, -1) for shares in super().factor_marginals()]


class SamplesAnotherField(Gibbs):
    def answer(self, fields, u):
        return super().answer(0.5 * fields, u)


class NotSoExact(FieldSolver):
    direction = "exact"


class NotSoExactOnTrees(FieldSolver):
    promises = {"exact_on_trees": True}


class ForgetsToImprove(FieldSolver):
    def step(self):
        residual = super().step()
        if self.iteration == 3:
            self._u = self.graph.uniform()
        return max(residual, self.iteration < 5)


class IgnoresItsStart(FieldSolver):
    def __init__(self, graph, seed=0, start=None):
        super().__init__(graph, seed)


class OverwritesItsStart(FieldSolver):
    def __init__(self, graph, seed=0, start=None):
        super().__init__(graph, seed, start)
        self._u = self._u if start is None else start


class KnowsNoTime(FieldSolver):
    def run(self, iterations=1000, tolerance=1e-6, seconds=0.0, **kwargs):
        return super().run(iterations, tolerance, **kwargs)


class DrawsFromElsewhere(FieldSolver):
    def _initial(self):
        return self.graph.softmax(torch.randn(self.graph.size, dtype=self.graph.dtype))


class WritesToTheGraph(FieldSolver):
    def __init__(self, graph, seed=0, start=None):
        graph.groups[0].tables.mul_(0.5)
        super().__init__(graph, seed, start)


class MissesOneVariable(FieldSolver):
    """Right on all fields but those that evidence has made smaller."""

    def log_z(self):
        return super().log_z() + (len(self.graph) < 4)


@configurable(supplied=["graph", "seed", "start"])
class FieldSolverOfAnySetting(SequentialMeanField):
    def __init__(self, graph, seed=0, start=None, speed=1.0):
        super().__init__(graph, seed, start)


GIN = "test_gin_files_can_name_it_and_cannot_bind_what_the_framework_supplies"
SETTINGS = "test_a_setting_of_a_wrong_type_is_refused_by_name"
BROKEN = {
    InferenceContract: {
        "test_the_loss_of_the_rounded_network_falls_on_a_convex_problem": [Ascends],
        "test_rounded_weights_are_exactly_on_their_levels": [RoundsBesideTheLevels],
        "test_rounding_ends_with_its_block": [StaysRounded],
        "test_weights_lie_between_the_levels_and_are_their_mean": [LeavesTheLevels],
        "test_weights_have_the_scales_of_the_labelling": [IgnoresScales],
        "test_saved_and_loaded_it_goes_on_to_the_bit": [ForgetsItsState],
        "test_the_order_of_the_parameters_plays_no_role": [MindsTheOrder],
        "test_the_state_of_a_smaller_network_is_refused": [TakesAnyState],
        "test_a_labelling_without_levels_is_refused": [NeedsNoLevels],
        GIN: [BindsTheLabelling, Unregistered],
        SETTINGS: [TakesAnySetting],
    },
    EnergyContract: {
        "test_the_gradient_is_the_derivative_of_the_value": [HalfTheGradient],
        "test_looking_at_it_changes_nothing": [UsesUpTheGradient],
        "test_the_parts_of_a_gradient_have_their_shapes": [MarginalsOfOneLabel],
        "test_families_may_write_to_the_gradient_on_the_weights": [LendsItsAverage],
        "test_beginning_a_step_changes_nothing_outside_the_energy": [TakesTheGradientAway, CountsEveryBeginning],
        "test_what_a_step_brings_is_seen_in_that_step": [StaysAtItsFirstStep, AStepBehind],
        "test_saved_and_loaded_it_goes_on_to_the_bit": [ForgetsItsAverage, SavesMoreThanData, CountsEveryBeginning],
        GIN: [Energy],
        SETTINGS: [EnergyOfAnySetting],
    },
    ProjectionContract: {
        "test_u_lies_in_the_simplex": [Overflows],
        "test_products_are_finite": [DividesByTheOthers],
        "test_a_constant_added_to_all_labels_changes_nothing": [MindsAConstant],
        "test_every_variable_is_projected_by_itself": [MixesVariables],
        "test_the_largest_auxiliary_variable_has_the_largest_u": [PrefersTheFirstLabel],
        "test_u_tends_to_a_vertex_as_beta_grows": [NeverDecides],
        "test_u_tends_to_what_is_stated_as_beta_vanishes": [NeverUndecided],
        "test_the_start_is_mapped_to_its_u": [StartsElsewhere],
        "test_the_product_is_that_of_the_jacobian": [AnotherProduct],
        "test_weights_and_their_product_are_those_of_the_planes": [AnotherMean],
        "test_the_line_is_a_line_of_planes": [AnotherLine],
        "test_the_start_on_the_line_is_mapped_to_its_mean": [StartsBesideTheLine],
        "test_only_out_and_gradients_are_overwritten": [OverwritesU],
        "test_out_receives_u_and_may_be_the_auxiliary_variables": [LeavesOutAlone],
        GIN: [Map],
        SETTINGS: [MapOfAnySetting],
    },
    FieldSolverContract: {
        "test_marginals_are_distributions": [TwiceTheMarginals],
        "test_every_variable_gets_one_of_its_labels": [OneLabelTooMany],
        "test_the_energy_is_that_of_the_labels_and_the_best_on_the_way": [TellsAnotherEnergy],
        "test_log_z_is_on_the_stated_side_of_the_truth": [AboveItsBound, BelowItsBound],
        "test_no_labelling_is_below_the_bound_on_energies": [ProvesTooMuch],
        "test_what_is_called_exact_is_exact": [NotSoExact, NotSoExactOnTrees],
        "test_factor_marginals_are_those_of_their_factors": [MixesFactorsUp],
        "test_samples_are_of_the_distribution": [SamplesAnotherField],
        "test_no_iteration_is_worse_than_the_one_before": [ForgetsToImprove],
        "test_a_warm_start_is_taken": [IgnoresItsStart, OverwritesItsStart],
        "test_the_time_limit_is_kept": [KnowsNoTime],
        "test_the_same_seed_gives_the_same_answer": [DrawsFromElsewhere],
        "test_evidence_is_respected": [MissesOneVariable],
        "test_the_graph_is_only_read": [WritesToTheGraph],
        GIN: [FieldSolver],
        SETTINGS: [FieldSolverOfAnySetting],
    },
}
GOOD = {
    InferenceContract: [ProximalMeanField, KeepsItsState, Samples],
    EnergyContract: [FirstOrderTaylor, RunningAverage],
    ProjectionContract: [Map, PlanesOnly],
    FieldSolverContract: [SequentialMeanField],
}
CASES = [(contract, check, part) for contract, of in BROKEN.items() for check, parts in of.items() for part in parts]
LEVELS = [(-1, 1), (-1, 0, 1), (-2, -1, 1, 2)]
WAYS = {"levels": LEVELS, "labels": [len(levels) for levels in LEVELS]}  # what a check may be asked for


@functools.cache
def contract_of(contract, part):
    """Its promises are what the author of the part would have said about it."""
    promises = {"fields": THIRD, "monotone": part.direction == "lower bound"} if contract is FieldSolverContract else {}
    return type("TestPart", (contract,), {"part": part, **promises, **getattr(part, "promises", {})})()


def checks(contract, check, part):
    """The calls of one check of a contract that pytest would make."""
    test = getattr(contract_of(contract, part), check)
    (way,) = list(inspect.signature(test).parameters) or [None]
    return [functools.partial(test, value) for value in WAYS[way]] if way else [test]


@pytest.mark.parametrize(("contract", "check", "part"), CASES, ids=[f"{p.__name__}" for _, _, p in CASES])
def test_a_broken_part_fails_its_check(contract, check, part):
    for call in checks(contract, check, part):
        with pytest.raises((AssertionError, BadInput, ValueError, pytest.fail.Exception)):
            call()


@pytest.mark.parametrize(
    ("contract", "check", "part"),
    [(contract, check, part) for contract, parts in GOOD.items() for part in parts for check in BROKEN[contract]],
)
def test_a_good_part_passes_the_same_check(contract, check, part):
    if part.__module__.startswith("mrfquant") or check not in (GIN, SETTINGS):  # those here are no names of gin's
        checks(contract, check, part)[0]()


@pytest.mark.parametrize("contract", BROKEN)
def test_every_check_has_a_part_that_fails_it(contract):
    assert {name for name in dir(contract) if name.startswith("test_")} == set(BROKEN[contract])
