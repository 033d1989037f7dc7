"""The first-order energy is <g, E[w]>, its gradient the derivative of that, its short cut the generic product."""

import numpy as np
import pytest
import torch

from mrfquant.energies import FirstOrderTaylor
from mrfquant.families import Independent, family_of
from mrfquant.labelling import Block, LevelSet
from mrfquant.labelling.scales import RunScales
from mrfquant.projections import Hardmax, Softmax, Sparsemax

M = 30
LEVELS = [(-1, 1), (0, 1), (-0.3, 1.1), (-1, 0, 1), (0, 1, 4), (-2, -1, 1, 2), (-1, -0.2, 0.3, 5)]
PROJECTIONS = {
    **{f"softmax {j}": Softmax(j) for j in ("exact", "reference", "straight_through", 0.3)},
    "sparsemax": Sparsemax(),
    "hardmax": Hardmax(),
}
every_projection = pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=PROJECTIONS.keys())
every_block = pytest.mark.parametrize(
    ("levels", "scale"), [(levels, scale) for levels in LEVELS for scale in (False, True)]
)


def block(levels, scale):
    w, g = torch.randn(2, M, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    runs = RunScales(torch.linspace(0.3, 2.0, M, dtype=torch.float64), torch.arange(1, M + 1), 0, M)
    return Block(LevelSet(levels), 0, w, g, runs if scale else None)


def distribution(of, seed):
    return Independent(of, torch.as_tensor(np.random.default_rng(seed).dirichlet(np.ones(of.d), size=M).T.copy()))


def loss(of, u):
    """<g, w(u)> for the planes u (d, M), by autograd's operations."""
    q = torch.tensor(sorted(of.levels.values), dtype=torch.float64)
    w = torch.einsum("l,lj->j", q, u)
    return (of.g * (w if of.scale is None else w * of.scale)).sum()


@every_block
def test_differences_of_values_are_those_of_the_linear_loss(levels, scale):
    b, energy = block(levels, scale), FirstOrderTaylor()
    one, two = distribution(b, 1), distribution(b, 2)
    difference = energy.value(one) - energy.value(two)
    assert difference.shape == ()
    expected = loss(b, one.probabilities()) - loss(b, two.probabilities())
    assert difference.item() == pytest.approx(expected.item(), abs=1e-12)


@every_block
def test_gradient_is_the_derivative_of_the_loss(levels, scale):
    b = block(levels, scale)
    p = distribution(b, 1)
    u = p.probabilities().clone().requires_grad_()
    (truth,) = torch.autograd.grad(loss(b, u), u)
    gradient = FirstOrderTaylor().gradient(p)
    assert gradient.weights is b.g  # no copy, which a step would pay for
    torch.testing.assert_close(gradient.on_labels(b), truth, rtol=0, atol=1e-13)


@every_projection
@every_block
@pytest.mark.parametrize("form", ["line", "planes"])
def test_the_product_by_weights_is_the_generic_one(form, levels, scale, projection):
    """That of planes; on a line, the part of it that comes closest to moving them."""
    b, beta = block(levels, scale), 0.7
    family = family_of(b, projection, form, 0.3)
    shape = (M,) if family.numbers == 1 else (b.d, M)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    family.write(x, beta)
    gradient = FirstOrderTaylor().gradient(family.distribution(x, beta))
    planes = x if family.numbers > 1 else family.line.planes(x)
    truth = projection.planes_vjp(projection.planes(planes, beta), gradient.on_labels(b), beta, planes)
    if family.numbers == 1:
        p = torch.stack([family.line.p, torch.ones(b.d, dtype=torch.float64)], 1)
        truth = torch.linalg.lstsq(p, truth).solution[0]
    w, before = b.w.clone(), x.clone()
    product = family.pull_back(gradient, x, beta, beta)
    assert truth.abs().max() > 0
    torch.testing.assert_close(product, truth, rtol=1e-12, atol=1e-12)
    assert torch.equal(b.w, w)
    assert torch.equal(x, before)
