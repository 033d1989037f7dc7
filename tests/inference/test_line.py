"""Variables on the line of levels: what u is by enumeration, products by autograd, and where runs start."""

import math

import pytest
import torch
from torch import nn

from mrfquant.energies import Energy, FirstOrderTaylor, PairwiseEnergy
from mrfquant.families import Gradient, Independent, LineFamily
from mrfquant.inference import MeanField, MirrorDescent, ProximalICM, ProximalMeanField, SparsemaxPGD
from mrfquant.inference.report import _packed, _unpacked
from mrfquant.labelling import Labelling
from mrfquant.projections import Line, Softmax, Sparsemax
from mrfquant.projections.base import START_POINTS, START_TOLERANCE
from mrfquant.schedules import Constant

LEVELS = {"ternary": [-1, 0, 1], "uneven": [-2, -1, 1, 2], "around 1": [0, 0.5, 1, 1.5, 2]}
EVERY = pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 10)).double()


def solver(levels, kind=ProximalMeanField, scale="none", **settings):
    return kind(Labelling(network(), levels, scale=scale), lambda p: torch.optim.Adam(p, lr=0.05), **settings)


def test_it_is_the_form_of_three_levels_and_more():
    assert [x.shape for x in solver([-1, 0, 1]).variables] == [(830,)]
    assert [x.shape for x in solver([-1, 0, 1], form="planes").variables] == [(3, 830)]
    assert [x.shape for x in solver([-1, 0, 1], auxiliary=False).variables] == [(3, 830)]  # u itself


@EVERY
@pytest.mark.parametrize("beta", [0.5, 30.0, 1e4])
def test_u_is_a_normal_distribution_on_the_levels(levels, beta):
    made = solver(levels, beta=Constant(beta))
    ((block, x),) = made.items()
    line, a = made.family(block).line, x.tolist()
    assert line.p[0] == 1 - len(levels)
    assert line.p[-1] == len(levels) - 1
    u, s, labels = made.distribution(block, x).probabilities(), line.spacing, made.labels(block, x)
    for j in range(0, len(a), 97):
        logits = [-beta * s * (a[j] / s - p) ** 2 / 2 for p in line.p.tolist()]
        shares = [math.exp(logit - max(logits)) for logit in logits]
        expected = [share / sum(shares) for share in shares]
        assert u[:, j].tolist() == pytest.approx(expected, abs=1e-9)
        assert block.w[j].item() == pytest.approx(sum(e * q for e, q in zip(expected, levels, strict=True)), abs=1e-9)
        assert labels[j] == min(range(len(levels)), key=lambda k: abs(a[j] / s - line.p[k]))


def on_line(levels, beta=3.0):
    """A block with weights and gradient, its line, x, and u by autograd's operations from a leaf."""
    made = solver(levels, beta=Constant(beta))
    ((block, x),) = made.items()
    block.g.copy_(torch.randn(block.m, dtype=x.dtype))
    line, a = made.family(block).line, x.clone().requires_grad_()
    return block, line, x, a, torch.softmax(beta * (line.p[:, None] * a - line.spacing * line.p[:, None] ** 2 / 2), 0)


def pull_back(block, line, x, energy, jacobian, beta=3.0):
    family = LineFamily(block, Softmax(jacobian), line.spacing)
    return family.pull_back(energy.gradient(family.distribution(x, beta)), x, beta, beta)


@EVERY
def test_the_exact_product_is_the_variance_of_the_weights(levels):
    """Up to the length of the line's direction, and beta: a moves as ũ would."""
    block, line, x, _, u = on_line(levels)
    mean = block.q @ u
    variance = ((block.q[:, None] - mean) ** 2 * u).sum(0)
    slope = 3.0 * variance * (line.p[-1] / block.levels.half_gap)  # of w in a, p being in units of the levels
    block.g.fill_(1.0)
    product = pull_back(block, line, x, FirstOrderTaylor(), "exact")
    torch.testing.assert_close(product * line.square, slope.detach(), rtol=1e-9, atol=1e-12)


class Bent(Energy):
    """Costs of labels that are no linear function of the levels, and the loss, by probabilities only."""

    def __init__(self, costs):
        self.costs = torch.tensor(costs, dtype=torch.float64)[:, None]

    def value(self, p):
        return (p.probabilities() * self.gradient(p).marginals).sum()

    def gradient(self, p):
        return Gradient(marginals=self.costs + p.block.q[:, None] * p.block.g)


@EVERY
def test_the_product_of_an_energy_on_u_is_the_derivative_by_autograd(levels):
    energy = Bent([k**2 - 2.0 * k for k in range(len(levels))])
    block, line, x, a, u = on_line(levels)
    (truth,) = torch.autograd.grad(energy.value(Independent(block, u)), a, retain_graph=True)
    product = pull_back(block, line, x, energy, "exact")
    torch.testing.assert_close(product * line.square, truth, rtol=1e-9, atol=1e-12)
    # An approximate product is the derivative with respect to t, times what it takes for the derivative of t.
    t = line.p / line.top @ u
    (of_t,) = torch.autograd.grad(t.sum(), a)
    slope = truth / of_t
    expected = Softmax("reference").mean_vjp(t.detach(), slope.clone(), 3.0, x, line)
    product = pull_back(block, line, x, energy, "reference")
    torch.testing.assert_close(product, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", [ProximalMeanField, MirrorDescent, ProximalICM, MeanField])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [1.0, 1e4])
def test_a_label_that_costs_less_than_its_neighbours_draws_them(kind, dtype, beta):
    """The middle of three, whose cost has no part along the line; where labels are decided, too."""
    made = Labelling(network().to(dtype), [-1, 0, 1])
    settings = {"energy": Bent([1.0, 0.0, 1.0])} | ({} if kind is ProximalICM else {"beta": Constant(beta)})
    made = kind(made, lambda p: torch.optim.SGD(p, lr=1e-3), **settings)
    made.energy.costs = made.energy.costs.to(dtype)
    (x,) = made.variables
    before = x.clone()
    made.labelling.collect_gradients()
    made.step()
    moved = x - before * (0.999 if kind is MeanField else 1)
    outside = before.abs() > 0.05 * before.abs().max()
    assert x.isfinite().all()
    assert (moved[outside] * before[outside] < 0).all()


def test_an_energy_of_probabilities_sees_them():
    made = solver([-1, 0, 1], energy=PairwiseEnergy(interval=1, samples=None))
    x = torch.randn(16, 30, dtype=torch.float64)
    for _ in range(3):
        nn.functional.cross_entropy(made.labelling.model(x), torch.arange(16) % 10).backward()
        made.step()
    assert made.variables[0].isfinite().all()


@pytest.mark.parametrize("kind", [ProximalMeanField, SparsemaxPGD, ProximalICM, MirrorDescent, MeanField])
@pytest.mark.parametrize("levels", [[-1, 0, 1], [-2, -1, 1, 2], list(range(16))], ids=["3", "4", "16"])
def test_random_weights_are_spread_over_the_levels_in_every_layer(kind, levels):
    made = solver(levels, kind)
    ((block, x),) = made.items()
    labels = made.labels(block, x)
    for name in ("0.weight", "2.weight"):
        first, last = made.labelling.labelled.spans[name]
        shares = labels[first:last].bincount(minlength=len(levels)) / (last - first)
        assert shares.min() >= 0.3 / len(levels)


@EVERY
def test_a_start_at_the_weights_has_their_mean_and_rounds_to_the_nearest(levels):
    made = solver(levels, scale="layer", start="weights", reach=4.0)
    ((block, x),) = made.items()
    weights = torch.cat([p.detach().flatten() for p in network().parameters()])
    within = ((weights / block.scale - block.levels.middle).abs() < 0.98 * block.levels.half_gap).nonzero()[:, 0]
    assert len(within) > 0.3 * len(weights)
    torch.testing.assert_close(block.w[within], weights[within], atol=1e-6, rtol=0)
    nearest = block.q[block.nearest(weights / block.scale)][within]
    off = (block.q[made.labels(block, x)][within] != nearest).double().mean()
    assert off < 0.25  # next to the ends u is cut off, and its mean is not its middle


def test_sampling_and_diagnostics_go_over_chunks(monkeypatch):
    made = solver([-1, 0, 1])
    ((block, x),) = made.items()
    whole = made.distribution(block, x).entropy().mean().item()
    monkeypatch.setattr("mrfquant.families.line.CHUNK", 100)
    assert made.diagnostics()["entropy"] == pytest.approx(whole)
    assert sum(made.layer_entropy().values()) > 0
    with made.sampled(torch.Generator().manual_seed(0)):
        assert sorted(block.w.unique().tolist()) == [-1, 0, 1]


@pytest.mark.parametrize("projection", [Softmax(), Sparsemax()])
@pytest.mark.parametrize("levels", [(-1, 0, 1), (-2, -1, 1, 2), (0, 1, 5)])
def test_many_starts_by_a_table_are_those_of_few_by_bisection(levels, projection):
    line = Line(torch.tensor(levels, dtype=torch.float64), 1.0)
    t = torch.rand(3 * START_POINTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1.98 - 0.99
    means = projection.mean(projection.mean_start(t, line, 1.0), line, 1.0)
    assert (means - t).abs().max() <= START_TOLERANCE
    few = torch.cat([projection.mean_start(part, line, 1.0) for part in t.split(START_POINTS)])
    torch.testing.assert_close(projection.mean(few, line, 1.0), means, atol=START_TOLERANCE, rtol=0)


@pytest.mark.parametrize("d", [2, 3, 4, 5, 16, 17, 256])
@pytest.mark.parametrize("m", [0, 1, 7, 8, 33])
def test_labels_are_kept_in_few_bits_and_come_back(d, m):
    labels = torch.randint(d, (m,), dtype=torch.uint8)
    packed = _packed(labels, d)
    assert torch.equal(_unpacked(packed, d, m), labels)
    assert packed.numel() == math.ceil(m / {2: 8, 3: 5, 4: 4, 5: 3, 16: 2}.get(d, 1))
