"""The clique potential against enumeration of all labellings, its gradient against autograd."""

import itertools
import math

import pytest
import torch
from torch import nn

from mrfquant.energies import CliquePotts
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling import Labelling

LEVELS = {"0 first": [0, 1], "0 last": [-2, 0], "0 between": [-1, 0, 1], "four": [-1, 0, 1, 2]}
NETWORKS = {
    "linear": lambda: nn.Linear(3, 2, bias=False),
    "convolution": lambda: nn.Conv2d(2, 2, (1, 2)),
    "channels last": lambda: nn.Conv2d(2, 2, (1, 2), bias=False).to(memory_format=torch.channels_last),
}


def _problem(network, levels, scale="none", **settings):
    torch.manual_seed(0)
    model = network().double()
    labelling = Labelling(model, levels, scale=scale)
    energy = CliquePotts(which=["*"], **settings)
    energy.attach(labelling)
    (block,) = labelling.blocks
    return model, energy, block, torch.rand(block.d, block.m, dtype=torch.float64).softmax(0)


def _cliques(weight, axis, channels):
    """The places of the weights of every clique in the block, which begins with them."""
    slices = torch.arange(weight.numel()).as_strided(weight.shape, weight.stride()).unbind(axis)
    return [torch.stack(slices[i : i + channels]).flatten() for i in range(0, len(slices), channels)]


def _form(block, probabilities):
    return probabilities[1] - probabilities[0] if block.is_pair else probabilities


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(("cliques", "channels"), [("outputs", 1), ("inputs", 1), ("outputs", 2)])
def test_the_expectation_equals_enumeration_and_the_gradient_its_derivative(network, levels, cliques, channels):
    softness = 0.4
    model, energy, block, probabilities = _problem(
        NETWORKS[network], LEVELS[levels], "channel", softness=softness, cliques=cliques, channels=channels
    )
    zero = LEVELS[levels].index(0)
    own = _cliques(model.weight, ("outputs", "inputs").index(cliques), channels)

    def enumerated(u):
        total = 0.0
        for places in own:
            n = len(places)
            for zeros in itertools.product([True, False], repeat=n):  # labels but 0 cost the same
                chance = torch.stack(
                    [u[zero, j] if is_zero else 1 - u[zero, j] for j, is_zero in zip(places, zeros, strict=True)]
                )
                cost = -math.expm1(-(n - sum(zeros)) / n / softness) / -math.expm1(-1 / softness)
                total = total + chance.prod() * cost
        return total

    leaf = probabilities.clone().requires_grad_()
    expected = enumerated(leaf)
    torch.testing.assert_close(energy.value(block, _form(block, probabilities)), expected.detach())
    (derivative,) = torch.autograd.grad(expected, leaf)
    gradient = energy.gradient(block, _form(block, probabilities))
    torch.testing.assert_close(gradient, _form(block, derivative) / (2 if block.is_pair else 1))


def test_decided_labels_cost_what_the_potential_says():
    _, energy, block, _ = _problem(lambda: nn.Linear(4, 3, bias=False), [-1, 0, 1], softness=0.25)
    labels = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [2, 0, 0, 2]])  # 0, 1 and 4 of 4 are not 0
    u = nn.functional.one_hot(labels.flatten(), 3).T.double()
    expected = sum((1 - math.exp(-share / 0.25)) / (1 - math.exp(-4)) for share in (0, 0.25, 1))
    assert energy.value(block, u).item() == pytest.approx(expected)


def test_a_small_softness_is_the_potts_potential_and_a_large_one_a_cost_of_each_weight():
    _, hard, block, u = _problem(lambda: nn.Linear(4, 2, bias=False), [-1, 0, 1], softness=0.02)
    zero = u[1].view(2, 4)
    torch.testing.assert_close(hard.value(block, u), (1 - zero.prod(1)).sum(), rtol=1e-5, atol=0)
    _, soft, block, u = _problem(lambda: nn.Linear(4, 2, bias=False), [-1, 0, 1], softness=1e5)
    torch.testing.assert_close(soft.value(block, u), (1 - zero).mean(1).sum(), rtol=1e-5, atol=0)


def test_large_cliques_of_undecided_weights_have_a_gradient_in_float32():
    torch.manual_seed(0)
    labelling = Labelling(nn.Linear(5000, 2, bias=False), [-1, 0, 1])
    energy = CliquePotts(softness=0.02, which=["*"])
    energy.attach(labelling)
    (block,) = labelling.blocks
    u = torch.full((3, block.m), 1 / 3)
    share = -math.expm1(-1 / (0.02 * 5000))
    expected = share * (1 - share * 2 / 3) ** 4999
    torch.testing.assert_close(-energy.gradient(block, u)[1], torch.full((block.m,), expected), rtol=1e-3, atol=0)


def test_the_last_layer_and_biases_have_no_cliques_unless_asked_for():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for settings, drawn in (({}, ["0.weight"]), ({"cliques": "inputs"}, ["1.weight"])):
        labelling = Labelling(model, [-1, 0, 1])
        energy = CliquePotts(**settings)
        energy.attach(labelling)
        (block,) = labelling.blocks
        gradient = energy.gradient(block, torch.full((3, block.m), 1 / 3))[1]
        assert [n for n in labelling.labelled.spans if labelling.labelled.view(n, gradient).any()] == drawn


def test_blocks_without_cliques_cost_nothing():
    labelling = Labelling(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), {"0.*": [-1, 0, 1], "*": [-1, 1]})
    energy = CliquePotts()
    energy.attach(labelling)
    binary = labelling.blocks[1]
    assert energy.value(binary, torch.zeros(binary.m)) == 0
    assert not energy.gradient(binary, torch.zeros(binary.m)).any()


@pytest.mark.parametrize(
    ("levels", "settings", "words"),
    [
        ([-1, 1], {}, "add 0 to Labelling.levels"),
        ([-1, 0, 1], {"channels": 3}, "does not divide the 4 outputs of 0.weight"),
        ([-1, 0, 1], {"which": ["conv*"]}, "fits no labelled parameter"),
        ([-1, 0, 1], {"which": ["*.bias"]}, "finds no labelled weight"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(levels, settings, words):
    labelling = Labelling(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), levels)
    with pytest.raises(BadInput, match=words):
        CliquePotts(**settings).attach(labelling)


def test_no_softness_is_refused():
    with pytest.raises(BadSetting, match=r"CliquePotts.softness = 0.0, expected a finite number of at least 0.02"):
        CliquePotts(softness=0.0)
