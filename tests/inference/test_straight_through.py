"""Straight-through training is what people write by hand with torch's parametrizations."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import mrfquant as mq

GROUP = 4
CLOSE = {"rtol": 1e-7, "atol": 1e-9}  # Adam divides by small numbers


class AbsMean(nn.Module):
    """The weights of BitNet b1.58 or, for two levels, of Binary Weight Networks; the gradient goes straight through."""

    def __init__(self, levels, sharing):
        super().__init__()
        self.levels, self.sharing = levels, sharing

    def forward(self, w):
        if self.sharing == "layer":
            quantized = self.quantized(w, (0, 1))
        elif self.sharing == "channel":
            quantized = self.quantized(w, (1,))
        else:
            quantized = torch.cat([self.quantized(part, (1,)) for part in w.split(GROUP, 1)], 1)
        return w + (quantized - w).detach()

    def quantized(self, w, dims):
        s = w.abs().mean(dims, keepdim=True)
        return w.sign() * s if self.levels == 2 else (w / s).round().clamp(-1, 1) * s


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def train(model, optimizer, steps=12):
    torch.manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 10, dtype=torch.float64)
        nn.functional.cross_entropy(model(x), torch.arange(16) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)


@pytest.mark.parametrize("sharing", ["layer", "channel", "group"])
@pytest.mark.parametrize("levels", [[-1, 0, 1], [-1, 1], [-0.5, 0.5]])
def test_it_is_training_with_the_weights_of_bitnet(levels, sharing):
    by_hand, model = mlp(), mlp()
    for layer in (by_hand[0], by_hand[2]):
        parametrize.register_parametrization(layer, "weight", AbsMean(len(levels), sharing))
    train(by_hand, adamw(by_hand.parameters()))
    labelling = mq.Labelling(model, levels, which="weights", scale=sharing, group_size=GROUP)
    solver = mq.StraightThrough(labelling, adamw, start="weights")
    train(model, solver)
    for a, b in zip((by_hand[0], by_hand[2]), (model[0], model[2]), strict=True):
        torch.testing.assert_close(b.weight, a.weight, **CLOSE)
        torch.testing.assert_close(b.bias, a.bias, **CLOSE)
    latent = torch.cat([layer.parametrizations.weight.original.flatten() for layer in (by_hand[0], by_hand[2])])
    torch.testing.assert_close(solver.variables[0], latent.detach(), **CLOSE)
    assert len(solver.variables[0].sign().unique()) == 2


@pytest.mark.parametrize("start", ["weights", "random"])
def test_latent_weights_start_in_the_units_of_the_network(start):
    model = mlp()
    before = torch.cat([model[0].weight.detach().flatten(), model[2].weight.detach().flatten()])
    labelling = mq.Labelling(model, [-2, -1, 1, 2], which="weights", scale="channel")
    torch.manual_seed(2)
    (x,) = mq.StraightThrough(labelling, adamw, start=start).variables
    torch.manual_seed(2)
    assert torch.equal(x, before if start == "weights" else labelling.initial_weights())
    first = x[:10].abs().mean() / 1.5  # the mean magnitude of the levels
    torch.testing.assert_close(labelling.scale[:10], first.expand(10))
    distances = (x[:10] - first * torch.tensor([[-2], [-1], [1], [2]])).abs()
    nearest = torch.tensor([-2, -1, 1, 2])[distances.argmin(0)] * first
    torch.testing.assert_close(model[0].weight[0], nearest)


def test_weights_that_are_all_zero_stay_numbers_and_leave_zero():
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.bias)
    labelling = mq.Labelling(model, [-1, 0, 1], scale="layer")
    solver = mq.StraightThrough(labelling, lambda p: torch.optim.SGD(p, lr=0.1), start="weights")
    assert torch.equal(model.bias, torch.zeros(2))
    (model(torch.ones(1, 4)) - 1).square().sum().backward()
    solver.step()
    assert model.bias.isfinite().all()
    assert (model.bias != 0).any()


@pytest.mark.parametrize("scale", ["none", 0.5])
def test_a_scale_that_cannot_be_fitted_is_refused(scale):
    with pytest.raises(mq.BadInput, match=r"fits scales: set Labelling\.scale to 'layer', 'channel' or 'group'"):
        mq.StraightThrough(mq.Labelling(mlp(), [-1, 1], scale=scale), adamw)


def test_learned_scales_are_refused():
    labelling = mq.Labelling(mlp(), [-1, 1], scale="layer")
    with pytest.raises(mq.BadSetting, match=r"learn_scale = True, expected False for StraightThrough"):
        mq.StraightThrough(labelling, adamw, learn_scale=True)
