"""A step as one graph of torch.compile is the step of compiled loops, and of torch's operations one by one.

The CPU's compiler stands in for that of a GPU.
"""

import copy
import functools

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from mrfquant.energies import CodeLength, FirstOrderTaylor, LabelPrior, SumOf
from mrfquant.families import choice, graph
from mrfquant.inference import MirrorDescent, ProjectedInference, ProximalMeanField, SparsemaxPGD
from mrfquant.labelling import Labelling
from mrfquant.projections import Softmax
from mrfquant.schedules import Geometric

ADAM = functools.partial(torch.optim.Adam, lr=0.01, fused=True)
OPTIMIZERS = {
    "Adam": ADAM,
    "Adam, decay": functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.01, fused=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, betas=(0.6, 0.9), fused=True),
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, fused=True),
    "SGD, momentum": functools.partial(
        torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.001, dampening=0.1, fused=True
    ),
}
STEPS = {
    "2 levels": (ProximalMeanField, [-1, 1], {}),
    "line": (ProximalMeanField, [-2, -1, 1, 2], {}),
    "line, exact": (ProximalMeanField, [-1, 0, 1], {"jacobian": "exact"}),
    "planes": (ProximalMeanField, [-1, 0, 1], {"form": "planes"}),
    "MD": (MirrorDescent, [-1, 0, 1], {}),
    "wells": (MirrorDescent, [-1, 0, 1], {"start": "weights"}),
    "wells, reference": (ProximalMeanField, [-2, -1, 1, 2], {"start": "weights", "jacobian": "reference"}),
    "PGD on planes": (SparsemaxPGD, [-1, 0, 1], {"form": "planes"}),
}
EXACT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """Graphs on the CPU, counted, with torch's own operations as their kernels."""
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(choice, "GRAPH_DEVICES", {"cpu"})
    monkeypatch.setattr(graph, "COMPILER", counter)
    return counter


def solver(kind=ProximalMeanField, levels=(-1, 0, 1), optimizer=ADAM, scale="channel", **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(101, 200), nn.Tanh(), nn.Linear(200, 37))
    return kind(Labelling(model, list(levels), scale=scale), optimizer, beta=Geometric(1.1, interval=1), **settings)


def train(solver, steps=4):
    """With another beta and another learning rate at every step."""
    x = torch.randn(16, 101, generator=torch.Generator().manual_seed(solver.iteration))
    for _ in range(steps):
        solver.labelling.model(x).square().mean().backward()
        solver.scale_learning_rate(0.95**solver.iteration)
        solver.step()
    return solver


def loops_or_operations(monkeypatch, *arguments, steps=4, **settings):
    """What is chosen on the CPU otherwise."""
    with monkeypatch.context() as patch:
        patch.setattr(choice, "GRAPH_DEVICES", set())
        return train(solver(*arguments, **settings), steps)


def close(one, two):
    torch.testing.assert_close(one.variables[0], two.variables[0], **EXACT)
    torch.testing.assert_close(one.labelling.labelled.w, two.labelling.labelled.w, atol=1e-5, rtol=1e-5)
    assert not one.labelling.labelled.g.any()
    states = [s.driver.state[s.variables[0]] for s in (one, two)]
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", STEPS)
def test_it_is_the_step_of_loops_and_of_torch(case, compiler, monkeypatch):
    kind, levels, settings = STEPS[case]
    one = train(solver(kind, levels, **settings))
    assert compiler.frame_count == 1
    close(one, loops_or_operations(monkeypatch, kind, levels, **settings))
    close(one, train(solver(kind, levels, compiled=False, **settings)))
    assert compiler.frame_count == 1  # not for those


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_so_it_is_with_every_rule(name, compiler, monkeypatch):
    one = train(solver(optimizer=OPTIMIZERS[name], scale="none"))
    assert compiler.frame_count == 1
    close(one, loops_or_operations(monkeypatch, optimizer=OPTIMIZERS[name], scale="none"))


def test_so_it_is_with_squares_that_have_no_memory(monkeypatch):
    adam = functools.partial(torch.optim.Adam, lr=0.01, betas=(0.9, 0.0), fused=True)
    close(train(solver(optimizer=adam), 1), loops_or_operations(monkeypatch, optimizer=adam, steps=1))


@pytest.mark.parametrize("form", ["line", "planes"])
def test_costs_of_labels_go_into_it(form, compiler, monkeypatch):
    """By SGD: Adam makes steps of the rounding of small gradients."""

    def priors():
        parts = [FirstOrderTaylor(), LabelPrior({1: -0.4}, which=["2.*"]), CodeLength(interval=2)]
        return SumOf(parts, [1.0, 0.1, 1e-3])

    settings = {"form": form, "optimizer": OPTIMIZERS["SGD"]}
    one = train(solver(energy=priors(), **settings))
    assert compiler.frame_count == 1
    close(one, loops_or_operations(monkeypatch, energy=priors(), **settings))
    assert not torch.allclose(one.variables[0], train(solver(**settings)).variables[0], **EXACT)


def test_the_compilers_kernels_do_the_same(monkeypatch):
    monkeypatch.setattr(graph, "COMPILER", "inductor")
    one, two = solver(), solver(compiled=False)
    for _ in range(10):  # a batch each, so that gradients stay large: Adam divides by them
        close(train(one), train(two))


@pytest.mark.parametrize("optimizer", [ADAM, OPTIMIZERS["SGD, momentum"]], ids=["Adam", "SGD"])
def test_one_graph_lasts_while_beta_and_learning_rate_change(optimizer, compiler):
    made = train(solver(optimizer=optimizer), 20)
    assert compiler.frame_count == 1
    assert made.beta == pytest.approx(1.1**20)


def test_one_graph_lasts_while_momentum_changes(compiler):
    """As torch's OneCycleLR changes it at every step."""
    made = solver()
    for beta1 in (0.9, 0.85, 0.8):
        made.param_groups[0]["betas"] = (beta1, 0.999)
        train(made, 1)
    assert compiler.frame_count == 1


def test_many_blocks_have_a_graph_each(compiler):
    """More than torch.compile keeps of one function."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    labelling = Labelling(model, {f"{k}.*": [-1 - k, 1 + k] for k in range(10)})
    made = ProximalMeanField(labelling, ADAM)
    model(torch.randn(2, 4)).square().mean().backward()
    made.step()
    assert len(labelling.blocks) == compiler.frame_count == 10


@pytest.mark.parametrize("optimizer", [ADAM, OPTIMIZERS["SGD, momentum"]], ids=["Adam", "SGD"])
@pytest.mark.parametrize("first", [True, False], ids=["from a graph", "to a graph"])
def test_either_way_goes_on_from_the_state_of_the_other(optimizer, first):
    whole = train(train(solver(optimizer=optimizer), 3), 3)
    one = train(solver(optimizer=optimizer, compiled=first), 3)
    two = solver(optimizer=optimizer, compiled=not first)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    close(train(two, 3), whole)


def test_a_resumed_graph_goes_on_to_the_bit():
    whole = train(train(solver(), 3), 3)
    one = train(solver(), 3)
    two = solver()
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(train(two, 3).variables[0], whole.variables[0])
    assert torch.equal(train(copy.deepcopy(one), 3).variables[0], whole.variables[0])


def test_without_a_compiler_torch_does_the_same_and_says_so(monkeypatch):
    def broken(*arguments, **settings):
        raise RuntimeError("no compiler here")

    whole = train(solver())
    for place, name in ((graph, "COMPILER"), (torch, "compile")):  # it fails at the first step, or at once
        with monkeypatch.context() as patch:
            patch.setattr(place, name, broken)
            with pytest.warns(UserWarning, match="operation by operation.*no compiler here"):
                made = train(solver())
        close(made, whole)


def test_other_projections_and_solvers_are_left_to_torch(compiler):
    class Other(Softmax):
        """It may do what no graph can hold."""

    class Halved(ProximalMeanField):
        def update(self, block, x):
            return super().update(block, x) / 2

    for kind, settings in ((ProjectedInference, {"projection": Other()}), (Halved, {}), (ProximalMeanField, {})):
        optimizer = functools.partial(torch.optim.Adam, lr=0.01, fused=kind is not ProximalMeanField)
        train(solver(kind, optimizer=optimizer, **settings), 1)
    assert compiler.frame_count == 0
