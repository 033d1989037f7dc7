"""A network of half precision is trained by float32 variables: small updates are not lost."""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

import mrfquant as mq

ADAM = functools.partial(torch.optim.Adam, lr=0.01)
HALVES = [torch.bfloat16, torch.float16]
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
every_level_set = pytest.mark.parametrize("levels", [[-1, 1], [-1, 0, 1]], ids=["2 levels", "3 levels"])


def make(dtype, levels=(-1, 1), solver=mq.ProximalMeanField, recipe=ADAM, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)).to(dtype)
    return model, solver(mq.Labelling(model, levels, which="weights", scale="channel"), recipe, **settings)


def train(model, solver, first=0, last=5):
    for step in range(first, last):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        model(x.to(model[0].weight.dtype)).float().square().mean().backward()
        solver.step()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@every_half
@every_level_set
@pytest.mark.parametrize("solver", [mq.ProximalMeanField, mq.BinaryConnect])
def test_the_network_has_the_rounded_weights_of_float32_vectors(dtype, levels, solver):
    model, solver = make(dtype, levels, solver, learn_scale=True)
    train(model, solver)
    labelling = solver.labelling
    assert {x.dtype for x in solver.variables} == {torch.float32}
    for flat in (labelling.labelled, labelling.free):
        for name in flat.spans:
            p = model.get_parameter(name)
            assert p.dtype == dtype
            assert torch.equal(p, flat.view(name, flat.w).to(dtype))
    with solver.rounded():
        labelling.check_on_levels(model.state_dict())
        rounded = weights(model)
    assert torch.equal(model[0].weight, labelling.labelled.view("0.weight", labelling.labelled.w).to(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.finalize()
    assert all(torch.equal(p, rounded[name]) for name, p in model.named_parameters())


def test_small_updates_are_not_lost():
    """One unit in the last place of a bfloat16 near 1 is 2^-8: steps of 2^-12 vanish where they are rounded."""
    model = nn.Linear(1, 1).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    solver = mq.Reference(mq.Labelling(model), functools.partial(torch.optim.SGD, lr=2.0**-12))
    for _ in range(64):
        model.weight.sum().backward()
        solver.step()
    assert model.weight.item() == 1 - 64 * 2.0**-12


@every_half
def test_gradients_are_the_networks_and_count_once(dtype):
    model, solver = make(dtype)
    other = copy.deepcopy(model)
    x = torch.randn(16, 8, dtype=dtype)
    for network in (model, other):
        network(x).float().square().mean().backward()
    labelling = solver.labelling
    for _ in range(2):  # a second look changes nothing
        labelling.collect_gradients()
        for flat in (labelling.labelled, labelling.free):
            for name in flat.spans:
                assert torch.equal(flat.view(name, flat.g), other.get_parameter(name).grad.float())
    solver.zero_grad()
    assert not labelling.collect_gradients()[0].any()


@every_half
def test_gradients_that_are_cut_off_and_clipped_are_found(dtype):
    model, solver = make(dtype, recipe=functools.partial(torch.optim.SGD, lr=1.0))
    model.zero_grad(set_to_none=True)
    model(torch.ones(1, 8, dtype=dtype)).float().sum().backward()
    nn.utils.clip_grad_value_([model[2].bias], 0.5)
    before = solver.labelling.free.view("2.bias", solver.labelling.free.w).clone()
    solver.step()
    torch.testing.assert_close(solver.labelling.free.view("2.bias", solver.labelling.free.w), before - 0.5)


@every_level_set
def test_copies_and_states_go_on_as_the_original(levels):
    model, solver = make(torch.bfloat16, levels, learn_scale=True)
    train(model, solver)
    copied = copy.deepcopy(solver)
    other, loaded = make(torch.bfloat16, levels, learn_scale=True)
    loaded.load_state_dict(copy.deepcopy(solver.state_dict()))
    assert all(torch.equal(p, other.get_parameter(name)) for name, p in model.named_parameters())
    for network, optimizer in ((model, solver), (copied.labelling.model, copied), (other, loaded)):
        train(network, optimizer, 5, 10)
    for name, p in model.named_parameters():
        assert torch.equal(p, copied.labelling.model.get_parameter(name))
        assert torch.equal(p, other.get_parameter(name))


def test_free_parameters_that_are_written_to_keep_what_was_written():
    model, solver = make(torch.bfloat16, recipe=functools.partial(torch.optim.SGD, lr=0.0))
    train(model, solver)
    with torch.no_grad():
        model[2].bias.fill_(3.0)
    train(model, solver)
    assert (model[2].bias == 3).all()


@every_half
@every_level_set
def test_it_is_packed_and_loaded_to_the_bit(dtype, levels, tmp_path):
    model, solver = make(dtype, levels)
    train(model, solver)
    with solver.rounded():
        mq.pack_model(model, solver.labelling).write(tmp_path / "half.safetensors")
        expected = weights(model)
    other, _ = make(dtype, levels)
    found = mq.load(tmp_path / "half.safetensors", other)
    assert all(torch.equal(p, expected[name]) for name, p in found.named_parameters())


def test_levels_that_are_one_in_half_precision_are_refused():
    with pytest.raises(mq.BadInput, match=r"not 2 different numbers in torch\.bfloat16"):
        make(torch.bfloat16, [1.0, 1.001])


def test_pairwise_energies_keep_their_averages_in_float32():
    energy = mq.PairwiseEnergy(interval=1)
    model, solver = make(torch.bfloat16, solver=functools.partial(mq.ProximalMeanField, energy=energy))
    train(model, solver)
    assert energy.diagonal(solver.labelling.blocks[0]).isfinite().all()
    assert {t.dtype for averages in energy._averages.values() for t in averages} == {torch.float32}


def test_the_digits_are_learned_as_in_float32(on_digits):
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = on_digits.network().to(dtype)
        solver = mq.ProximalMeanField(mq.Labelling(model, [-1, 1], which="weights", scale="channel"), ADAM)
        on_digits.train(model, solver, 150)
        found[dtype] = on_digits.accuracy(solver.finalize())
    assert found[torch.float32] > 0.93
    assert found[torch.bfloat16] > found[torch.float32] - 0.02
