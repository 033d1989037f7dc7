"""Wells: the weights are posterior means, the scales least squares, and the network begins as it is."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import mrfquant as mq
from mrfquant.energies import LabelPrior
from mrfquant.families import Gradient, Wells, family_of
from mrfquant.kernels import dispatch
from mrfquant.labelling import Block, LevelSet
from mrfquant.labelling.scales import RunScales
from mrfquant.projections import Softmax, Sparsemax

LEVELS = [(-1, 1), (0, 1), (-1, 0, 1), (-2, -1, 1, 2), (-0.5, 0.1, 2.0)]


def block(levels, m=24, run=6, dtype=torch.float64):
    w, g = torch.zeros(m + 3, dtype=dtype), torch.zeros(m + 3, dtype=dtype)
    runs = m // run
    scales = RunScales(torch.linspace(0.5, 1.5, runs + 1, dtype=dtype), torch.arange(3, m + 4, run), 3, m)
    return Block(LevelSet(levels), 3, w[3:], g[3:], scales, layouts=(torch.empty(runs, run, device="meta"),))


def numbers(m=24, seed=0, dtype=torch.float64):
    return torch.randn(m, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def family(b, jacobian="straight_through"):
    return family_of(b, Softmax(jacobian), "wells", 1.0)


@pytest.mark.parametrize("beta", [1.0, 1.7, 30.0])
@pytest.mark.parametrize("levels", LEVELS)
def test_weights_are_the_posterior_mean_of_a_mixture_of_normals(levels, beta):
    """Priors N(s q, σ²) around each level, x = w + N(0, τ²), σ² / (σ² + τ²) = 1 / β, σ² + τ² = s² Δ² / (4 β)."""
    b = block(levels)
    of, x = family(b), numbers()
    of.write(x, beta)
    p = of.distribution(x, beta)
    mean, variance = p.mean(), p.variance()
    torch.testing.assert_close(mean, b.w, atol=1e-12, rtol=0)
    for j, s in enumerate(b.scale.tolist()):
        total = (s * (max(levels) - min(levels)) / (len(levels) - 1)) ** 2 / (4 * beta)
        sigma, tau = np.sqrt(total / beta), np.sqrt(total * (1 - 1 / beta))
        if beta == 1:
            assert b.w[j].item() == pytest.approx(x[j].item(), abs=1e-12)
            continue

        def density(w, power, s=s, sigma=sigma, tau=tau, j=j):
            prior = sum(stats.norm.pdf(w, s * q, sigma) for q in levels)
            return w**power * prior * stats.norm.pdf(x[j].item(), w, tau)

        grid = np.linspace(-12, 12, 20_001)
        mass, first, second = (integrate.simpson(density(grid, power), x=grid) for power in (0, 1, 2))
        if mass > 1e-100:
            assert b.w[j].item() == pytest.approx(first / mass, abs=1e-6)
            assert variance[j].item() == pytest.approx(second / mass - (first / mass) ** 2, abs=1e-6)


@pytest.mark.parametrize("levels", LEVELS)
def test_scales_are_least_squares_for_the_nearest_labels(levels):
    b, x = block(levels), numbers()
    of = family(b)
    of.start_at(b.scales.divide(x.clone()), 1.0)
    q = b.q[of.labels(x, 1.0).long()]
    for run, (values, labels) in enumerate(zip(x.view(-1, 6), q.view(-1, 6), strict=True)):
        if (product := (values * labels).sum()) > 0:
            fitted = (product / labels.square().sum()).item()
            assert b.scales.values[b.scales.runs[0] + run].item() == pytest.approx(fitted)


def test_a_run_whose_labels_are_all_0_begins_again_and_zeros_keep_their_scale():
    b = block((-1, 0, 1))
    b.scales.values.fill_(1e6)
    x = numbers()
    x[:6] = 0
    b.scales.fit(x, b.q, b.midpoints, sweeps=20)
    first, last = b.scales.runs
    assert b.scales.values[first] == 1e6
    assert (b.scales.values[first + 1 : last] < 5).all()


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1), (-2, -1, 1, 2)])
def test_compiled_fits_are_those_of_torch(levels, monkeypatch):
    pytest.importorskip("numba")
    one, two = (block(levels, 6000, 60, torch.float32) for _ in range(2))
    x = numbers(6000, dtype=torch.float32)
    one.scales.fit(x, one.q, one.midpoints, sweeps=3)
    monkeypatch.setattr(dispatch, "usable", lambda *tensors, **settings: False)
    two.scales.fit(x, two.q, two.midpoints, sweeps=3)
    torch.testing.assert_close(one.scales.values, two.scales.values, atol=1e-5, rtol=0)


def test_the_jacobian_of_the_reference_weakens_gradients_of_decided_labels():
    b, beta, g = block((-1, 1)), 20.0, numbers(seed=2)
    x = numbers()
    through, reference = family(b), family(b, "reference")
    reference.write(x, beta)
    t = torch.tanh(beta * x / b.scale)
    assert torch.equal(through.pull_back(Gradient(weights=g), x, beta, 1.0), g)
    expected = g * (1 - 0.5 * (1 - 1 / beta) * t.square())
    torch.testing.assert_close(reference.pull_back(Gradient(weights=g), x, beta, 1.0), expected)


def test_only_softmax_goes_with_wells():
    with pytest.raises(mq.BadInput, match="set form = 'line'"):
        family_of(block((-1, 1)), Sparsemax(), "wells", 1.0)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))


def trained(model, solver, steps=30):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(32, 40, generator=generator)
        torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        solver.step()


def adam(p):
    return torch.optim.Adam(p, lr=0.01)


@pytest.mark.parametrize("kind", [mq.MirrorDescent, mq.ProximalMeanField])
@pytest.mark.parametrize("scale", ["channel", "layer", "group", 0.1])
def test_from_trained_weights_wells_are_the_default_and_change_nothing_at_first(kind, scale):
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    labelling = mq.Labelling(model, [-1, 0, 1], which="weights", scale=scale)
    solver = kind(labelling, adam, start="weights")
    assert solver.form == "wells"
    assert all(isinstance(solver.family(block), Wells) for block in labelling.blocks)
    for p, q in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), q, atol=1e-7, rtol=0)
    solver.prepare(60)
    trained(model, solver, 60)
    if scale == 0.1:
        assert (labelling.scale_of_runs == 0.1).all()
    expected = torch.cat([block.scale * block.q[solver.labels(block, x).long()] for block, x in solver.items()])
    solver.finalize()
    names = labelling.labelled.spans
    assert torch.equal(torch.cat([model.get_parameter(name).flatten() for name in names]), expected)


def test_learned_scales_and_other_projections_keep_the_line():
    labelling = mq.Labelling(network(), [-1, 0, 1], which="weights", scale="channel")
    assert mq.ProximalMeanField(labelling, adam, start="weights", learn_scale=True).form == "line"
    labelling = mq.Labelling(network(), [-1, 0, 1], which="weights", scale="channel")
    assert mq.SparsemaxPGD(labelling, adam, start="weights").form == "line"
    labelling = mq.Labelling(network(), [-1, 0, 1], which="weights", scale="channel")
    assert mq.MirrorDescent(labelling, adam).form == "line"
    with pytest.raises(mq.BadInput, match="fits the scales itself"):
        mq.MirrorDescent(labelling, adam, start="weights", form="wells", learn_scale=True)
    with pytest.raises(mq.BadInput, match="drop auxiliary"):
        mq.ProximalMeanField(labelling, adam, form="wells", auxiliary=False)


def test_frozen_layers_keep_their_scales():
    model = network()
    labelling = mq.Labelling(model, [-1, 0, 1], which="weights", scale="channel")
    solver = mq.MirrorDescent(labelling, adam, start="weights")
    solver.prepare(40)
    trained(model, solver, 10)
    model[0].weight.requires_grad_(False)
    span = labelling.scales.span(*labelling.labelled.spans["0.weight"])
    before, w = labelling.scale_of_runs[span].clone(), model[0].weight.detach().clone()
    trained(model, solver, 10)
    assert torch.equal(labelling.scale_of_runs[span], before)
    assert torch.equal(model[0].weight, w)


def test_priors_on_labels_keep_the_line_and_wells_refuse_them():
    model = network()
    labelling = mq.Labelling(model, [-1, 0, 1], which="weights", scale="channel")
    energy = mq.SumOf([mq.FirstOrderTaylor(), LabelPrior(costs=[1, 0, 1])])
    assert mq.MirrorDescent(labelling, adam, start="weights", energy=energy).form == "line"
    assert mq.ProximalMeanField(labelling, adam, start="weights", energy=energy).form == "line"
    solver = mq.MirrorDescent(labelling, adam, start="weights", energy=energy, form="wells")
    with pytest.raises(mq.BadInput, match="set form = 'line'"):
        trained(model, solver, 1)
