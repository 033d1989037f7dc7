"""A family of one's own, whose labels depend on each other, trains, resumes, reports, rounds and packs as it is."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.packing import load, pack_model


class Opposites(mq.Distribution):
    """Neighbours have opposite labels: the first of each pair has the upper one with probability p (m / 2,)."""

    def __init__(self, block, p):
        self.block, self.p = block, p

    def probabilities(self):
        upper = torch.stack([self.p, 1 - self.p], 1).flatten()
        return torch.stack([1 - upper, upper])

    def entropy(self):  # that of a pair belongs to its first weight: the second one follows from it
        bits = (torch.special.entr(self.p) + torch.special.entr(1 - self.p)) / math.log(2)
        return torch.stack([bits, torch.zeros_like(bits)], 1).flatten()

    def decided(self, threshold):
        return self.probabilities().amax(0) >= threshold

    def sample(self, generator=None):
        return pairs(torch.rand(len(self.p), generator=generator).to(self.p) < self.p)


def pairs(first):
    return torch.stack([first, ~first], 1).flatten().int()


class Antiferromagnet(mq.Family):
    """One natural parameter for a pair of weights, in the place of the first; that of the second plays no role."""

    def start(self, draw, beta):
        return draw()

    def start_at(self, w, beta, as_mean=False):
        t = ((w[0::2] - w[1::2]) / 2).clamp(-0.99, 0.99)
        return torch.stack([t.atanh() / beta, torch.zeros_like(t)], 1).flatten()

    def write(self, x, beta):
        t = (beta * x[0::2]).tanh()
        self.block.w.copy_(torch.stack([t, -t], 1).flatten())
        self.block.apply_scale()

    def pull_back(self, gradient, x, beta, factor):
        g = gradient.weights if self.block.scale is None else gradient.weights * self.block.scale
        t, out = (beta * x[0::2]).tanh(), torch.zeros_like(x)
        out[0::2] = factor * (1 - t * t / 2) * (g[0::2] - g[1::2])
        return out

    def labels(self, x, beta):
        return pairs(x[0::2] > 0)

    def distribution(self, x, beta):
        return Opposites(self.block, torch.sigmoid(2 * beta * x[0::2]))


class Paired(mq.LevelSet):
    family = Antiferromagnet


@pytest.fixture
def problem():
    def build(**settings):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
        labelling = mq.Labelling(model, Paired([-1, 1]), which="weights", scale="channel")
        solver = mq.ProximalMeanField(labelling, lambda p: torch.optim.Adam(p, lr=0.01), **settings)
        solver.prepare(300)
        return model, solver

    return build


def train(model, solver, steps, seed=0):
    random, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.randn(64, 20, generator=random)
        loss = functional.cross_entropy(model(x), (x[:, ::2].sum(1) > x[:, 1::2].sum(1)).long())
        loss.backward()
        solver.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("settings", [{}, {"learn_scale": True}, {"start": "weights"}], ids=str)
def test_it_trains_reports_rounds_and_packs(problem, settings, tmp_path):
    model, solver = problem(**settings)
    first = solver.diagnostics()["entropy"]
    losses = train(model, solver, 300)
    assert losses[-1] < 0.3 * losses[0]
    assert solver.diagnostics()["entropy"] < first / 2 <= 0.25  # half a bit a weight at most: a bit for each pair
    with solver.sampled(torch.Generator().manual_seed(0)):
        assert opposite(model)
    solver.finalize()
    assert opposite(model)
    pack_model(model, solver.labelling).write(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", copy.deepcopy(model))
    for name, p in model.named_parameters():
        torch.testing.assert_close(loaded.get_parameter(name), p, rtol=1e-3, atol=1e-6)


def opposite(model):
    """Whether the labels of neighbouring weights are opposite."""
    rows = [layer.weight.sign().view(-1, 2) for layer in (model[0], model[2])]
    return all((row.sum(1) == 0).all() and row.abs().all() for row in rows)


def test_it_resumes_to_the_bit(problem):
    model, whole = problem()
    train(model, whole, 10)
    expected = train(model, whole, 10, seed=1)
    model, first = problem()
    train(model, first, 10)
    model, second = problem()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert train(model, second, 10, seed=1) == expected
