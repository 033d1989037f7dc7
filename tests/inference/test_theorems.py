"""The paper's statements about the updates, on networks and toy energies, against independent truths."""

import functools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional

from mrfquant.families import PlanesFamily
from mrfquant.inference import (
    BinaryConnect,
    MeanField,
    MirrorDescent,
    ProximalICM,
    ProximalMeanField,
    ProxQuant,
    SparsemaxPGD,
)
from mrfquant.labelling import Labelling, LevelSet
from mrfquant.models import LeNet300
from mrfquant.schedules import Constant

LEVELS = {2: [-1.0, 1.0], 3: [-1.0, 0.0, 1.0], 4: [-2.0, -1.0, 1.0, 2.0]}


class Weights(nn.Module):
    """A bare vector of weights, to give a solver any gradient."""

    def __init__(self, m):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(m, dtype=torch.float64))


def with_gradient(solver, levels, g, lr, optimizer=torch.optim.SGD):
    """A solver in float64 whose network has just got the gradient g."""
    torch.manual_seed(3)
    inference = solver(Labelling(Weights(len(g)), levels), functools.partial(optimizer, lr=lr))
    inference.labelling.labelled.g.copy_(g)
    return inference


def planes(inference):
    (pair,) = inference.items()
    return inference.distribution(*pair).probabilities().clone()


@pytest.mark.parametrize("d", LEVELS)
@pytest.mark.parametrize("beta", [0.7, 3.0, 20.0])
def test_theorem_3_1_the_direct_update_minimises_the_proximal_mean_field_objective(d, beta):
    eta, q = 0.3, np.array(LEVELS[d])
    g = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    solver = functools.partial(ProximalMeanField, auxiliary=False, beta=Constant(beta))
    inference = with_gradient(solver, LEVELS[d], g, eta)
    before = planes(inference).numpy()
    inference.step()
    after = planes(inference).numpy()
    for j in range(4):

        def objective(z, j=j):
            u = np.exp(z - z.max())
            u /= u.sum()
            return eta * (g[j].item() * q) @ u - before[:, j] @ u + (u * np.log(u + 1e-300)).sum() / beta

        best = min((minimize(objective, start, tol=1e-14) for start in np.eye(d)), key=lambda r: r.fun)
        u = np.exp(best.x - best.x.max())
        assert after[:, j] == pytest.approx(u / u.sum(), abs=2e-5)


def test_proposition_3_1_minima_over_probabilities_are_those_over_weights():
    """Projected gradient descent on f(u q) over the simplexes ends at the local minima of f between the levels.

    All weights have the same f, whose minima, inside and at one end, are found on a fine grid; each starts at another
    u. Those that start at a minimum, as some mixture of three levels, stay there.
    """
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    values = functional.pad(torch.cos(9 * grid) - grid, (1, 1), value=torch.inf)
    minima = grid[(values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])]
    assert 1.0 in minima
    assert len(minima) > 3
    descent = functools.partial(SparsemaxPGD, auxiliary=False, beta=Constant(1.0))
    inference = with_gradient(descent, LEVELS[3], torch.zeros(300, dtype=torch.float64), 0.004)
    u, w, q = inference.variables[0], inference.labelling.labelled.w, torch.tensor(LEVELS[3], dtype=torch.float64)
    u.copy_(torch.distributions.Dirichlet(torch.full((3,), 0.7, dtype=torch.float64)).sample((300,)).t())
    at = minima[torch.arange(100) % len(minima)]
    middle = torch.rand(100, dtype=torch.float64) * (1 - at.abs())  # the share of the level 0 is free
    u[:, :100] = torch.stack([1 - middle - at, 2 * middle, 1 - middle + at]) / 2
    w.copy_(q @ u)
    inference.restore(inference.labelling.blocks[0], u)
    for _ in range(400):
        inference.labelling.labelled.g.copy_(-9 * torch.sin(9 * w) - 1)
        inference.step()
    assert torch.allclose(w[:100], at, atol=1e-3)
    distances = (w[:, None] - minima).abs()
    assert distances.min(1).values.max() < 1e-3
    assert set(distances.argmin(1).tolist()) == set(range(len(minima)))


@pytest.mark.parametrize("clip", [True, False])
def test_proposition_3_2_proximal_icm_with_half_the_rate_is_binary_connect(clip):
    """Full-batch gradient descent for 50 steps: the same weights at every step, the latent ones related by w̃ = ũ q."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 1, 28, 28, dtype=torch.float64), torch.randint(10, (64,))
    models = [LeNet300((1, 28, 28), 10, width=0.1).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    rate = 0.02
    bc = BinaryConnect(Labelling(models[0], [-1, 1]), functools.partial(torch.optim.SGD, lr=rate))
    picm = ProximalICM(Labelling(models[1], [-1, 1]), functools.partial(torch.optim.SGD, lr=rate / 2), clip=clip)
    bc.variables[0].copy_(2 * picm.variables[0])  # ũ q = ã - (-ã)
    bc.write_all()
    flips = 0
    for _ in range(50):
        before = bc.labelling.labelled.w.clone()
        for model, solver in zip(models, (bc, picm), strict=True):
            functional.cross_entropy(model(x), y).backward()
            solver.step()
        flips += (bc.labelling.labelled.w != before).sum().item()
        assert torch.equal(bc.labelling.labelled.w, picm.labelling.labelled.w)
        if clip:
            assert torch.allclose(bc.variables[0], 2 * picm.variables[0], atol=1e-12)
    assert flips > 100  # the two moved, and moved together


class AsPlanes(LevelSet):
    """Levels with a number of variables for each, two levels too."""

    family = PlanesFamily


JACOBIANS = {
    j: functools.partial(ProximalMeanField, jacobian=j) for j in ("exact", "reference", "straight_through", 0.75)
}
TWO_FORMS = {
    **{f"PMF, {jacobian}": solver for jacobian, solver in JACOBIANS.items()},
    "PMF without auxiliary": functools.partial(ProximalMeanField, auxiliary=False),
    "PICM": ProximalICM,
    "MD": MirrorDescent,
    "MF": functools.partial(MeanField, damping=0.5),
}
# The planes get gradients that are no opposites; Adam takes each for itself.
PARTED_BY_ADAM = "PMF, reference"


def largest_difference(name, levels, optimizer):
    """Between the weights of a pair and of two planes that start alike, over 20 steps with the same gradients."""
    solver = TWO_FORMS[name] if name == "PICM" else functools.partial(TWO_FORMS[name], beta=Constant(2.0))
    gradients = [torch.randn(6, dtype=torch.float64) for _ in range(20)]
    pair = with_gradient(solver, levels, gradients[0], 0.1, optimizer)
    start = pair.variables[0].clone()
    both = with_gradient(solver, AsPlanes(levels), gradients[0], 0.1, optimizer)
    both.variables[0].copy_(torch.stack([-start, start]) + (0 if both.auxiliary else 0.5))  # u = 1/2 -+ t/2
    both.labelling.labelled.w.copy_(pair.labelling.labelled.w)
    both.restore(both.labelling.blocks[0], both.variables[0])
    found = 0.0
    for g in gradients:
        for inference in (pair, both):
            inference.labelling.labelled.g.copy_(g)
            inference.step()
        found = max(found, (pair.labelling.labelled.w - both.labelling.labelled.w).abs().max().item())
    assert not torch.allclose(pair.variables[0], start)
    return found


@pytest.mark.parametrize("levels", [[-1.0, 1.0], [0.0, 1.0], [-0.5, 2.0]])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("name", TWO_FORMS)
def test_two_levels_in_pair_form_move_as_two_planes_do(name, optimizer, levels):
    difference = largest_difference(name, levels, optimizer)
    if optimizer is torch.optim.Adam and name == PARTED_BY_ADAM:
        assert difference > 1e-3
    else:
        assert difference < 1e-7


@pytest.mark.parametrize("d", LEVELS)
def test_with_the_exact_jacobian_pmf_descends_the_loss_of_the_softmax(d):
    """The gradient on the auxiliary variables is autograd's through loss(model(softmax(beta ũ) q))."""
    torch.manual_seed(0)
    model = LeNet300((1, 4, 4), 3, width=0.05).double()
    solver = functools.partial(ProximalMeanField, jacobian="exact", beta=Constant(1.7), form="planes")
    inference = solver(Labelling(model, LEVELS[d]), functools.partial(torch.optim.SGD, lr=0.0))
    x, y = torch.randn(8, 1, 4, 4, dtype=torch.float64), torch.randint(3, (8,))
    functional.cross_entropy(model(x), y).backward()
    (aux,) = inference.variables
    naive = aux.clone().requires_grad_()
    q = torch.tensor(LEVELS[d], dtype=torch.float64)
    flat = torch.softmax(1.7 * naive, 0).t() @ q
    spans = inference.labelling.labelled.spans
    weights = {n: flat[a:b].view_as(p) for (n, (a, b)), p in zip(spans.items(), model.parameters(), strict=True)}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    functional.cross_entropy(torch.func.functional_call(model, {**weights, **buffers}, x), y).backward()
    assert torch.allclose(inference.update(inference.labelling.blocks[0], aux), naive.grad, atol=1e-12)
    assert naive.grad.abs().max() > 1e-3


@pytest.mark.parametrize("d", LEVELS)
def test_mirror_descent_is_the_multiplicative_update_of_the_entropy_mirror_map(d):
    """With beta = 1: u <- u exp(-eta g) / normalisation, computed here on u itself."""
    g = torch.randn(5, dtype=torch.float64)
    inference = with_gradient(functools.partial(MirrorDescent, beta=Constant(1.0), form="planes"), LEVELS[d], g, 0.3)
    before = planes(inference)
    inference.step()
    # In pair form a step along the half difference moves the two planes by it, in opposite directions.
    multiplied = before * torch.exp(-0.3 * torch.outer(torch.tensor(LEVELS[d], dtype=torch.float64), g))
    assert torch.allclose(planes(inference), multiplied / multiplied.sum(0), atol=1e-12)


@pytest.mark.parametrize("d", LEVELS)
def test_mean_field_converges_to_its_fixed_point(d):
    g = torch.randn(5, dtype=torch.float64)
    inference = with_gradient(
        functools.partial(MeanField, damping=0.5, beta=Constant(2.5), form="planes"), LEVELS[d], g, 0.1
    )
    for _ in range(60):
        inference.labelling.labelled.g.copy_(g)
        inference.step()
    expected = torch.softmax(-2.5 * torch.outer(torch.tensor(LEVELS[d], dtype=torch.float64), g), 0)
    assert torch.allclose(planes(inference), expected, atol=1e-10)


def test_prox_quant_minimises_the_w_shaped_regulariser():
    """argmin over w of (w - v)² / 2 + reach * |w - nearest level of v|, found on a fine grid."""
    levels, reach = [-1.0, 0.0, 1.0], 0.15
    v = torch.linspace(-0.98, 0.98, 41, dtype=torch.float64)
    inference = with_gradient(functools.partial(ProxQuant, reg_rate=0.1, epoch=1), levels, 0 * v, lr=0.5)
    inference.iteration, inference.budget = 2, 1000
    inference.variables[0].copy_(v)
    inference.step()  # moves by nothing, then the proximal operator of the third epoch
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    q = torch.tensor(levels, dtype=torch.float64)
    for value, found in zip(v, inference.labelling.labelled.w, strict=True):
        nearest = q[(q - value).abs().argmin()]
        objective = (grid - value) ** 2 / 2 + reach * (grid - nearest).abs()
        assert found.item() == pytest.approx(grid[objective.argmin()].item(), abs=2e-4)


def test_prox_quant_rounds_and_freezes_at_the_end():
    inference = with_gradient(functools.partial(ProxQuant, freeze=0.5), [-1.0, 1.0], torch.ones(9).double(), 0.1)
    inference.budget = 10
    for k in range(10):
        inference.labelling.labelled.g.fill_(0.3)
        inference.step()
        on_levels = inference.labelling.labelled.w.abs().eq(1).all()
        assert on_levels == (k + 1 >= 5)
