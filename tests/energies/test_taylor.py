"""The first-order energy is <g, w(u)>, its gradient the derivative of that, its short cut the generic product."""

import numpy as np
import pytest
import torch

from mrfquant.energies import FirstOrderTaylor
from mrfquant.inference.projected import auxiliary_gradient
from mrfquant.labelling import Block, LevelSet
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


def block(levels, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    w, g = torch.randn(2, M, generator=generator, dtype=torch.float64)
    return Block(LevelSet(levels), 0, w, g, torch.linspace(0.3, 2.0, M, dtype=torch.float64) if scale else None)


def auxiliary(of, seed=1):
    shape = (M,) if of.is_pair else (of.d, M)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def projected(projection, of, aux, beta):
    return projection.pair(aux, beta) if of.is_pair else projection.planes(aux, beta)


def distributions(d, seed):
    return torch.as_tensor(np.random.default_rng(seed).dirichlet(np.ones(d), size=M).T.copy())


def in_form(of, u):
    return u[1] - u[0] if of.is_pair else u


def loss(of, u):
    """<g, w(u)> for the planes u (d, M), by autograd's operations."""
    q = torch.tensor(sorted(of.levels.values), dtype=torch.float64)
    w = torch.einsum("l,lj->j", q, u)
    return (of.g * (w if of.scale is None else w * of.scale)).sum()


@every_block
def test_differences_of_values_are_those_of_the_linear_loss(levels, scale):
    b, energy = block(levels, scale), FirstOrderTaylor()
    one, two = distributions(b.d, 1), distributions(b.d, 2)
    difference = energy.value(b, in_form(b, one)) - energy.value(b, in_form(b, two))
    assert difference.shape == ()
    assert difference.item() == pytest.approx((loss(b, one) - loss(b, two)).item(), abs=1e-12)


@every_block
def test_gradient_is_the_derivative_of_the_loss(levels, scale):
    b = block(levels, scale)
    u = distributions(b.d, 1).requires_grad_()
    (truth,) = torch.autograd.grad(loss(b, u), u)
    gradient = FirstOrderTaylor().gradient(b, in_form(b, u.detach()))
    torch.testing.assert_close(gradient, (truth[1] - truth[0]) / 2 if b.is_pair else truth, rtol=0, atol=1e-13)


def generic(energy, projection, b, u, aux, beta):
    """The product with the gradient on u, without the short way over the weights."""
    vjp = projection.pair_vjp if b.is_pair else projection.planes_vjp
    return vjp(u.clone(), energy.gradient(b, u), beta, aux.clone())


@every_projection
@every_block
def test_the_product_by_weights_is_the_generic_one(levels, scale, projection):
    b, energy, beta = block(levels, scale), FirstOrderTaylor(), 0.7
    aux = auxiliary(b)
    u = projected(projection, b, aux, beta)
    b.write(u)
    w, aux_before = b.w.clone(), aux.clone()
    truth = generic(energy, projection, b, u, aux, beta)
    product = auxiliary_gradient(energy, projection, b, u, aux, beta)
    assert truth.abs().max() > 0
    torch.testing.assert_close(product, truth, rtol=1e-12, atol=1e-12)
    assert torch.equal(b.w, w)
    assert torch.equal(aux, aux_before)


@pytest.mark.parametrize("levels", [(-1, 1), (-0.3, 1.1)])
@pytest.mark.parametrize("jacobian", ["exact", "reference", "straight_through", 0.3])
def test_the_product_of_a_pair_reads_u_from_the_weights_without_changing_them(levels, jacobian):
    b, energy, beta, projection = block(levels, False), FirstOrderTaylor(), 0.7, Softmax(jacobian)
    aux = auxiliary(b)
    b.write(projection.pair(aux, beta))
    truth = generic(energy, projection, b, torch.tanh(beta * aux), aux, beta)
    w = b.w.clone()
    product = auxiliary_gradient(energy, projection, b, b.mean_of_weights(), aux, beta)
    torch.testing.assert_close(product, truth, rtol=1e-12, atol=1e-12)
    assert torch.equal(b.w, w)


@every_block
def test_the_product_is_the_derivative_through_softmax_by_autograd(levels, scale):
    b, beta = block(levels, scale), 0.7
    aux = auxiliary(b)
    planes = (torch.stack([-aux, aux]) if b.is_pair else aux.clone()).requires_grad_()
    (truth,) = torch.autograd.grad(loss(b, torch.softmax(beta * planes, 0)), planes)
    u = projected(Softmax("exact"), b, aux, beta)
    b.write(u)
    product = auxiliary_gradient(FirstOrderTaylor(), Softmax("exact"), b, u, aux, beta)
    torch.testing.assert_close(product, (truth[1] - truth[0]) / 2 if b.is_pair else truth, rtol=0, atol=1e-13)


def test_an_energy_with_a_gradient_of_its_own_does_not_inherit_that_on_the_weights():
    class Twice(FirstOrderTaylor):
        def gradient(self, block, u):
            return 2 * super().gradient(block, u)

    b = block((-1, 1), False)
    assert FirstOrderTaylor().weight_gradient(b) is b.g
    assert Twice().weight_gradient(b) is None
