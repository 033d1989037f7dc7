"""A training step asks torch for so many operations, however many parameters the network has, and never waits.

Counts instead of seconds: they are the same on every machine, and show a loop over parameters or a sync at once.
"""

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mrfquant.data.images import Images, Split
from mrfquant.inference import (
    BinaryConnect,
    MeanField,
    MirrorDescent,
    ProximalICM,
    ProximalMeanField,
    ProxQuant,
    Reference,
    SparsemaxPGD,
)
from mrfquant.kernels import dispatch
from mrfquant.labelling import Labelling
from mrfquant.training import Trainer

TWO, FOUR = {"levels": (-1, 1)}, {"levels": (-2, -1, 1, 2)}


def on_planes(solver):
    return functools.partial(solver, form="planes")


# Solver, settings of the labelling, the most operators a step may call, and the most bytes it may ask for, in units of
# a weight's 4.
# Lower them when a step gets better; a step that needs more has to say why.
BUDGETS = {
    "PMF, 2 levels": (ProximalMeanField, TWO, 11, 1),
    "PMF, 4 levels": (ProximalMeanField, FOUR, 23, 16),
    "PMF, 4 levels on planes": (on_planes(ProximalMeanField), FOUR, 14, 3),
    "PGD, 2 levels": (SparsemaxPGD, TWO, 10, 1.25),
    "PGD, 4 levels": (SparsemaxPGD, FOUR, 93, 100),
    "PGD, 4 levels on planes": (on_planes(SparsemaxPGD), FOUR, 49, 40),
    "PICM, 2 levels": (ProximalICM, TWO, 12, 2.5),
    "PICM, 4 levels": (ProximalICM, FOUR, 48, 43.25),
    "PICM, 4 levels on planes": (on_planes(ProximalICM), FOUR, 48, 43.25),
    "MD, 2 levels": (MirrorDescent, TWO, 9, 0),
    "MD, 4 levels": (MirrorDescent, FOUR, 21, 16),
    "MD, 4 levels on planes": (on_planes(MirrorDescent), FOUR, 15, 7),
    "MF, 2 levels": (MeanField, TWO, 9, 1),
    "MF, 4 levels": (MeanField, FOUR, 27, 32),
    "MF, 4 levels on planes": (on_planes(MeanField), FOUR, 14, 7),
    "BC": (BinaryConnect, FOUR, 7, 1),
    "PQ": (ProxQuant, FOUR, 11, 3),
    "REF": (Reference, {}, 4, 0),
}
CASES = pytest.mark.parametrize(("solver", "settings", "calls", "words"), BUDGETS.values(), ids=BUDGETS.keys())

SYNCS = ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero")


class Operations(TorchDispatchMode):
    """Count, within the block, calls of operators, new memory and waits for the device; views are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.allocated = self.syncs = 0

    @property
    def total(self) -> int:
        """All calls."""
        return self.calls.total()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        inputs = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        result = function(*args, **(kwargs or {}))
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        library, _, name = function._schema.name.partition("::")
        known = {t.untyped_storage().data_ptr() for t in inputs}
        fresh = [t for t in outputs if t.untyped_storage().data_ptr() not in known]
        written = _written(function._schema, args, kwargs or {})
        if library == "profiler" or (outputs and not fresh and not written):
            return result  # a mark, or a view
        self.calls[name] += 1
        self.syncs += name in SYNCS or (name == "_to_copy" and _crosses(inputs, outputs))
        self.allocated += sum(t.nbytes for t in fresh)
        return result


def _written(schema: Any, args: tuple, kwargs: dict) -> list[Tensor]:
    """Return the tensors among the arguments that the operator writes to."""
    given = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | kwargs
    places = [given.get(a.name) for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    return [t for t in tree_leaves(places) if isinstance(t, Tensor)]


def _crosses(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Return whether something came to the host from another device."""
    return any(t.device.type != "cpu" for t in inputs) and any(t.device == torch.device("cpu") for t in outputs)


def network(layers, width=12):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def adam(variables):
    return torch.optim.Adam(variables, lr=0.01, fused=True)


def counted(solver, settings, model):
    """The operations of a step, not the first, with the number of labelled weights."""
    labelling = Labelling(model, **settings)
    inference = solver(labelling, adam)
    inference.budget = 1000
    images = torch.randn(4, model[0].in_features)
    for _ in range(2):
        model(images).square().mean().backward()
        with Operations() as operations:
            inference.step()
    return operations, max(len(labelling), len(labelling.free))


@CASES
def test_a_step_stays_within_its_budget(solver, settings, calls, words):
    operations, m = counted(solver, settings, network(3))
    assert operations.total <= calls, operations.calls
    assert operations.allocated / 4 / m <= words
    assert operations.syncs == 0


@CASES
def test_more_parameters_need_no_more_operations(solver, settings, calls, words):
    assert counted(solver, settings, network(20))[0].calls == counted(solver, settings, network(3))[0].calls


@pytest.mark.skipif(dispatch.loops("simplex") is None, reason="numba is not installed")
@pytest.mark.parametrize("settings", [TWO, FOUR], ids=["2 levels", "4 levels"])
def test_a_step_in_one_pass_leaves_nothing_to_torch(settings):
    operations, _ = counted(ProximalMeanField, settings, network(2, width=128))
    assert operations.calls == {"zero_": 1}  # of the free parameters' gradient, of which there is none
    assert operations.allocated == 0


@pytest.mark.skipif(dispatch.loops("simplex") is None, reason="numba is not installed")
def test_the_fused_step_on_planes_leaves_torch_adam_and_clearing():
    operations, _ = counted(on_planes(ProximalMeanField), FOUR, network(2, width=128))
    assert operations.calls == {"_fused_adam_": 1, "_foreach_add_": 1, "zero_": 2}
    assert operations.allocated == 0


def random_data(n=40, width=12):
    split = Split(torch.randint(256, (n, 1, 1, width), dtype=torch.uint8), torch.randint(10, (n,)))
    return Images("random", split, split, split, (0.5,), (0.25,), tuple("0123456789"), augment=None)


@CASES
def test_the_loop_adds_nothing_that_grows_or_waits(solver, settings, calls, words):
    def around(layers):
        """What an iteration of the trainer calls besides forward, backward and the solver's step."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), *network(layers))
        trainer = Trainer(
            model, random_data(), solver(Labelling(model, **settings), adam), iterations=1000, batch_size=4
        )
        trainer._step()
        images, labels = next(trainer.batches)
        with Operations() as bare:
            functional.cross_entropy(model(images), labels).backward()
            trainer.inference.step()
        with Operations() as whole:
            trainer._step()
        assert whole.syncs == 0
        return whole.calls - bare.calls

    assert around(12) == around(2) == {}


# --- the guard can fail


class LoopingPMF(ProximalMeanField):
    """Scales the gradient parameter by parameter."""

    def update(self, block, x):
        labelled = self.labelling.labelled
        for name in labelled.spans:
            labelled.view(name, labelled.g).mul_(1.0)
        return super().update(block, x)


class WaitingPMF(ProximalMeanField):
    """Looks at a value on the host."""

    def update(self, block, x):
        assert block.g[0].item() < 1e9
        return super().update(block, x)


class CopyingPMF(ProximalMeanField):
    """Works on a copy of the gradient."""

    def update(self, block, x):
        block.g.copy_(block.g.clone())
        return super().update(block, x)


def test_a_loop_over_parameters_is_noticed():
    few, many = (counted(LoopingPMF, TWO, network(layers))[0].total for layers in (3, 20))
    assert many - few == 2 * (20 - 3)  # weight and bias of each layer
    assert few > BUDGETS["PMF, 2 levels"][2]


def test_a_sync_is_noticed():
    assert counted(WaitingPMF, TWO, network(3))[0].syncs == 1


def test_a_copy_is_noticed():
    plain, copying = (counted(solver, TWO, network(3))[0] for solver in (ProximalMeanField, CopyingPMF))
    assert copying.allocated - plain.allocated == 4 * 3 * (12 * 12 + 12)


def test_operations_are_counted():
    a, b = torch.zeros(100), torch.zeros(100)
    with Operations() as counted:
        c = a + b
        c.view(10, 10)[0].mul_(2)
        c.sum().item()
    assert counted.calls == {"add": 1, "mul_": 1, "sum": 1, "_local_scalar_dense": 1}
    assert counted.allocated == 4 * (100 + 1)
    assert counted.syncs == 1
