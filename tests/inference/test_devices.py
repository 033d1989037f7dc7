"""What a GPU would not forgive, shown without one: a step on a device without values.

The solver is built on the CPU and moved to torch's `meta` device, where tensors have a shape and no numbers: an
operation that needs a number on the host fails there, and what is made on the default device, or mixes devices, is on
record.
"""

import functools
import io
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mrfquant as mq
from mrfquant.data.batches import epoch_generator
from mrfquant.data.images import Images, Split
from mrfquant.families import choice, graph
from mrfquant.labelling.flat import FlatParameters
from mrfquant.training import Trainer
from mrfquant.training.hooks import Samples

TWO, FOUR = {"levels": (-1, 1)}, {"levels": (-2, -1, 1, 2)}
SCALED = {**FOUR, "scale": "channel"}


def on_planes(solver):
    return functools.partial(solver, form="planes")


STEPS = {
    "PMF, 2 levels": (mq.ProximalMeanField, TWO),
    "PMF, 4 levels": (mq.ProximalMeanField, FOUR),
    "PMF, 4 levels on planes": (on_planes(mq.ProximalMeanField), FOUR),
    "PMF, learned scales": (functools.partial(mq.ProximalMeanField, learn_scale=True), SCALED),
    "PMF without auxiliary": (functools.partial(mq.ProximalMeanField, auxiliary=False), FOUR),
    "PGD, 4 levels": (mq.SparsemaxPGD, FOUR),
    "PGD, 4 levels on planes": (on_planes(mq.SparsemaxPGD), FOUR),
    "PICM, 2 levels": (mq.ProximalICM, TWO),
    "PICM, 4 levels": (mq.ProximalICM, FOUR),
    "PICM, 4 levels on planes": (on_planes(mq.ProximalICM), FOUR),
    "MD, 4 levels": (mq.MirrorDescent, FOUR),
    "MD, in wells": (functools.partial(mq.MirrorDescent, start="weights"), SCALED),
    "MF, 2 levels": (mq.MeanField, TWO),
    "MF, 4 levels on planes": (on_planes(mq.MeanField), FOUR),
    "BC": (mq.BinaryConnect, FOUR),
    "PQ": (mq.ProxQuant, FOUR),
    "STE": (mq.StraightThrough, {**TWO, "scale": "channel"}),
    "REF": (mq.Reference, {}),
}
CASES = pytest.mark.parametrize(("solver", "settings"), STEPS.values(), ids=STEPS.keys())


class OffDevice(TorchDispatchMode):
    """Within the block, the operations that made something on the host, or mixed devices."""

    def __init__(self):
        super().__init__()
        self.calls, self.generators = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given, made = ([t for t in tree_leaves(x) if isinstance(t, torch.Tensor)] for x in ((args, kwargs), result))
        mixed = len({t.device.type for t in given if t.dim()}) > 1
        if mixed or any(t.device.type == "cpu" for t in made):
            self.calls.append(function._schema.name)
        if "generator" in (kwargs or {}):
            self.generators.append(kwargs["generator"])
        return result


def on_meta(part):
    """A copy whose tensors are all on the device without values, views still views."""
    file = io.BytesIO()
    torch.save(part, file)
    file.seek(0)
    return torch.load(file, map_location="meta", weights_only=False)


@pytest.fixture(autouse=True)
def _no_addresses(monkeypatch):
    """There are none on that device, and comparing them is all that this does with float32."""
    monkeypatch.setattr(FlatParameters, "collect", lambda self: setattr(self, "any_frozen", False))


def sgd(tensors):
    return torch.optim.SGD(tensors, lr=0.01, momentum=0.9)


def built(solver, settings, optimizer=sgd):
    """A network and its solver after a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    inference = solver(mq.Labelling(model, **settings), optimizer)
    inference.prepare(1000)
    model(torch.randn(4, 12)).square().mean().backward()
    inference.step()
    return model, inference


@CASES
def test_a_step_stays_on_its_device_and_asks_for_no_value(solver, settings):
    inference = on_meta(built(solver, settings)[1])
    model = inference.labelling.model
    assert {p.device.type for p in model.parameters()} == {"meta"}
    with OffDevice() as off:
        model(torch.randn(4, 12, device="meta")).square().mean().backward()
        inference.step()
    assert off.calls == []


@CASES
def test_an_iteration_of_the_trainer_does_so_too(solver, settings):
    """With clipping and a schedule; the data are there already."""
    inference = on_meta(built(solver, settings)[1])
    split = Split(torch.zeros(40, 1, 1, 12, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64))
    dataset = Images("none", split, split, split, (0.5,), (0.25,), tuple("0123456789"), augment=None)
    trainer = Trainer(inference.labelling.model, dataset, inference, iterations=1000, batch_size=4, clip=1.0)
    batch = torch.zeros(4, 1, 1, 12, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    trainer.batches = itertools.repeat(batch)
    with OffDevice() as off:
        trainer._step()
    assert off.calls == []


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD], ids=["Adam", "SGD"])
@pytest.mark.parametrize("case", ["PMF, 2 levels", "PMF, 4 levels on planes"])
def test_a_step_as_a_graph_asks_for_no_value(case, optimizer, monkeypatch):
    solver, settings = STEPS[case]
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(graph, "COMPILER", counter)
    monkeypatch.setattr(choice, "GRAPH_DEVICES", {"meta"})
    recipe = functools.partial(optimizer, lr=0.01, fused=True)
    inference = on_meta(built(solver, settings, recipe)[1])
    for state in inference.driver.state.values():
        assert all(tensor.is_meta for tensor in state.values() if tensor is not None)
    for _ in range(3):
        inference.labelling.model(torch.randn(4, 12, device="meta")).square().mean().backward()
        inference.step()
    assert counter.frame_count == 1


@pytest.mark.parametrize("case", ["PMF, 2 levels", "PMF, 4 levels", "PMF, 4 levels on planes"])
def test_labels_are_drawn_on_the_device_by_the_generator_that_is_given(case, monkeypatch):
    monkeypatch.setattr("mrfquant.inference.answers.check_answer", lambda solver: None)  # looks at numbers
    inference, generator = on_meta(built(*STEPS[case])[1]), torch.Generator().manual_seed(1234567)
    with OffDevice() as off, inference.sampled(generator):
        pass
    assert [drew.initial_seed() for drew in off.generators] == [1234567]
    assert off.calls == []


def test_generators_are_made_on_the_device_of_what_they_draw_for(monkeypatch):
    """Torch refuses one of another device; data come from the host's, so that a run sees the same on every device."""
    made, generator = [], torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": made.append(str(device)) or generator())
    model = nn.Module()
    model.generate = lambda tokens, *_: torch.zeros(2, dtype=torch.int64)
    data = SimpleNamespace(description=lambda: {"classes": "\n"})
    where = SimpleNamespace(device=torch.device("meta"), iteration=3, model=model, dataset=data, say=lambda _: None)
    Samples().evaluated(where)
    epoch_generator(0, 0)
    assert made == ["meta", "cpu"]


# --- the guard can fail


class Waits(mq.ProximalMeanField):
    """Looks at a value on the host."""

    def update(self, block, x):
        assert block.g[0].item() < 1e9
        return super().update(block, x)


class OnTheHost(mq.ProximalMeanField):
    """Makes a tensor where torch makes them if nobody says where."""

    def update(self, block, x):
        return super().update(block, x) * torch.ones(())


def test_a_look_at_a_value_is_noticed():
    inference = on_meta(built(Waits, TWO)[1])
    with pytest.raises(RuntimeError, match="meta"):
        inference.step()


def test_a_tensor_on_the_default_device_is_noticed():
    inference = on_meta(built(OnTheHost, TWO)[1])
    with OffDevice() as off:
        inference.step()
    assert "aten::ones" in off.calls


# --- what one kind of device lacks


def test_long_sums_are_of_a_type_that_the_device_has():
    from mrfquant.compute import widest

    assert widest(torch.device("mps")) == torch.float32
    assert widest(torch.device("cuda", 0)) == widest(torch.device("cpu")) == torch.float64


# --- what torch.compile would make of it


# Case -> graphs, and operations in them, of product, a plain step and projection.
GRAPHS = {
    "PMF, 2 levels": (1, 6),
    "PMF, 4 levels": (1, 15),
    "PMF, 4 levels on planes": (1, 6),
    "MD, 4 levels": (1, 12),
    "PGD, 4 levels on planes": (1, 38),
    "BC": (1, 4),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_an_update_is_one_graph_of_so_many_operations(case):
    """Counts may not grow: a graph is what a compiler fuses, and an operation at most a kernel."""
    _, inference = built(*STEPS[case])
    ((block, x),) = inference.items()

    def update(x):
        gradient = inference.update(block, x)
        x = x - 0.01 * gradient
        inference.write(block, x)
        return x

    torch._dynamo.reset()
    with torch.no_grad():
        found = torch._dynamo.explain(update)(x.clone())
    graphs, operations = GRAPHS[case]
    assert found.graph_count <= graphs
    assert found.op_count <= operations
