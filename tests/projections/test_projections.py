"""Projections land where the paper's optimisation problems say, and their products are those of the stated matrices.

What every projection has to keep is checked by its contract (tests/testing/test_contracts.py).
"""

import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadSetting
from mrfquant.projections import Hardmax, Line, Softmax, Sparsemax

SOFTMAXES = {f"softmax {j}": Softmax(j) for j in ("exact", "reference", "straight_through", 0, 0.3, 1)}
ALL = {**SOFTMAXES, "sparsemax": Sparsemax(), "hardmax": Hardmax()}
MAPS = {"softmax": Softmax(), "sparsemax": Sparsemax(), "hardmax": Hardmax()}  # values do not depend on the Jacobian
TRUE_JACOBIANS = {"softmax": Softmax("exact"), "sparsemax": Sparsemax()}


def cases(projections):
    return pytest.mark.parametrize("projection", projections.values(), ids=projections.keys())


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def as_planes(aux):
    """ũ = (-ã, ã)."""
    return torch.stack([-aux, aux])


def pair(dtype=torch.float64):
    """The line of two levels."""
    return Line(torch.tensor([-1.0, 1.0], dtype=dtype), 0.0)


def centred(g):
    return g - g.mean(0)


def nearest_on_simplex(y):
    """The point of the simplex closest to y (d,): of all supports, the best feasible equality-constrained solution."""
    best, best_distance = None, np.inf
    for size in range(1, len(y) + 1):
        for support in map(list, itertools.combinations(range(len(y)), size)):
            z = np.zeros_like(y)
            z[support] = y[support] + (1 - y[support].sum()) / size
            distance = ((z - y) ** 2).sum()
            if (z >= 0).all() and distance < best_distance:
                best, best_distance = z, distance
    return best


def per_variable(matrix, g):
    """The product of g (d, m) with a matrix (d, d) for each variable, one variable after the other."""
    return torch.stack([matrix(j) @ g[:, j] for j in range(g.shape[1])], dim=1)


# --- where the projections land


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_softmax_maximises_the_inner_product_plus_entropy_over_beta(d, beta, seed):
    """Lemma 2.1; the simplex is searched as z = s² / |s|², on which no exponential appears."""
    aux = normal(d, seed=seed)

    def negative(s):
        z = s**2 / (s**2).sum()
        return -(aux.numpy() @ z) - scipy.special.entr(z).sum() / beta

    found = scipy.optimize.minimize(negative, np.linspace(1, 1.1, d), options={"gtol": 1e-8})
    z = found.x**2 / (found.x**2).sum()
    u = Softmax().planes(aux[:, None], beta)[:, 0].numpy()
    assert u == pytest.approx(z, abs=2e-6)
    assert negative(np.sqrt(u)) <= found.fun + 1e-12


@pytest.mark.parametrize("d", [2, 3, 4, 6, 8, 9, 10])
def test_sparsemax_is_the_nearest_point_of_the_simplex(d):
    aux, beta = normal(d, 12, seed=d), 0.9
    truth = np.stack([nearest_on_simplex(beta * column) for column in aux.numpy().T], axis=1)
    assert len(set((truth > 0).sum(0))) > 1  # supports of several sizes
    assert Sparsemax().planes(aux, beta).numpy() == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_sparsemax_solves_the_quadratic_program(d):
    y = 0.8 * normal(d, seed=d)
    found = scipy.optimize.minimize(
        lambda z: ((z - y.numpy()) ** 2).sum(),
        np.full(d, 1 / d),
        method="SLSQP",
        bounds=[(0, 1)] * d,
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1},
        options={"ftol": 1e-14},
    )
    assert Sparsemax().planes(y[:, None], 1.0)[:, 0].numpy() == pytest.approx(found.x, abs=1e-6)


@pytest.mark.parametrize("d", [2, 3, 6])
@cases({"softmax": Softmax(), "sparsemax": Sparsemax()})
def test_both_maps_approach_hardmax_as_beta_grows(projection, d):
    aux = normal(d, 200, seed=1)
    top, next_ = aux.sort(dim=0, descending=True).values[:2]
    aux = aux[:, top - next_ > 0.01]
    vertices = torch.nn.functional.one_hot(aux.argmax(0), d).T
    distances = [(projection.planes(aux, beta) - vertices).abs().max().item() for beta in (0.1, 1, 10, 100, 1e4)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.3
    assert distances[-1] < 1e-12


@cases({"softmax": Softmax(), "sparsemax": Sparsemax()})
def test_the_pair_form_approaches_the_sign_as_beta_grows(projection):
    aux = normal(200)
    aux = aux[aux.abs() > 0.01]
    assert projection.mean(aux, pair(), 1e4).numpy() == pytest.approx(aux.sign().numpy(), abs=1e-12)


def test_hardmax_takes_the_first_of_equals():
    aux = torch.tensor([[1.0, 0.0, 2.0], [1.0, 3.0, 2.0], [0.0, 3.0, 2.0]])
    assert Hardmax().planes(aux, 1.0).T.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert Hardmax().mean(torch.tensor([-0.1, 0.0, 0.1]), pair(torch.float32), 1.0).tolist() == [-1, -1, 1]


@pytest.mark.parametrize("beta", [0.2, 1.0, 30.0])
@cases(MAPS)
def test_pair_form_is_the_planes_form_of_two_labels(projection, beta):
    aux = normal(300)
    aux[0] = 0
    t = projection.mean(aux, pair(), beta)
    u = projection.planes(as_planes(aux), beta)
    torch.testing.assert_close(torch.stack([(1 - t) / 2, (1 + t) / 2]), u, rtol=0, atol=1e-14)


# --- products with the Jacobian


class InPlanes(torch.autograd.Function):
    """The projection as autograd sees it if `planes_vjp` is its backward."""

    @staticmethod
    def forward(ctx, aux, projection, beta):
        u = projection.planes(aux, beta)
        ctx.save_for_backward(aux, u)
        ctx.projection, ctx.beta = projection, beta
        return u

    @staticmethod
    def backward(ctx, g):
        aux, u = ctx.saved_tensors
        return ctx.projection.planes_vjp(u, g.clone(), ctx.beta, aux), None, None


class AsPair(torch.autograd.Function):
    """The same for `mean_vjp` of a pair. The derivative by t is δ; that by ã = (ũ_2 - ũ_1) / 2 is twice the product."""

    @staticmethod
    def forward(ctx, aux, projection, beta):
        t = projection.mean(aux, pair(), beta)
        ctx.save_for_backward(aux, t)
        ctx.projection, ctx.beta = projection, beta
        return t

    @staticmethod
    def backward(ctx, delta):
        aux, t = ctx.saved_tensors
        return 2 * ctx.projection.mean_vjp(t, delta.clone(), ctx.beta, aux, pair()), None, None


def away_from_kinks(aux, beta):
    """The columns of aux whose sparsemax keeps its support when anything moves by less than 1e-3."""
    z = beta * aux
    u = torch.as_tensor(np.stack([nearest_on_simplex(column) for column in z.numpy().T], axis=1))
    threshold = ((z - u) * (u > 0)).amax(0)
    return aux[:, (z - threshold).abs().amin(0) > 1e-3]


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("beta", [0.4, 2.5])
@cases(TRUE_JACOBIANS)
def test_planes_product_is_the_derivative_by_finite_differences(projection, beta, d):
    aux = away_from_kinks(normal(d, 8, seed=d), beta)
    assert aux.shape[1] >= 5
    assert torch.autograd.gradcheck(lambda x: InPlanes.apply(x, projection, beta), aux.requires_grad_())


@pytest.mark.parametrize("beta", [0.4, 2.5])
@cases(TRUE_JACOBIANS)
def test_pair_product_is_half_the_derivative_by_finite_differences(projection, beta):
    aux = normal(40)
    aux = aux[((2 * beta * aux).abs() - 1).abs() > 1e-3]
    assert ((2 * beta * aux).abs() > 1).any()
    assert ((2 * beta * aux).abs() < 1).any()
    assert torch.autograd.gradcheck(lambda x: AsPair.apply(x, projection, beta), aux.requires_grad_())


@pytest.mark.parametrize("d", [2, 3, 5])
def test_exact_softmax_product_is_autograd_of_exponentials(d):
    aux, g, beta = normal(d, 30).requires_grad_(), normal(d, 30, seed=1), 1.7
    u = (beta * aux).exp() / (beta * aux).exp().sum(0)
    (truth,) = torch.autograd.grad(u, aux, g)
    product = Softmax("exact").planes_vjp(u.detach(), g.clone(), beta, aux.detach())
    torch.testing.assert_close(product, truth, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_sparsemax_product_is_autograd_of_the_projection_on_its_support(d):
    beta = 0.8
    aux = away_from_kinks(normal(d, 30), beta).requires_grad_()
    g = normal(d, aux.shape[1], seed=1)
    z = beta * aux
    support = torch.as_tensor(np.stack([nearest_on_simplex(column) for column in z.detach().numpy().T], axis=1) > 0)
    u = support * (z - ((z * support).sum(0) - 1) / support.sum(0))
    (truth,) = torch.autograd.grad(u, aux, g)
    product = Sparsemax().planes_vjp(u.detach(), g.clone(), beta, aux.detach())
    torch.testing.assert_close(product, truth, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("jacobian", ["exact", "reference", "straight_through", 0, 0.25, 0.5, 1.0, 1])
def test_softmax_products_are_those_of_the_matrices_it_documents(jacobian, d):
    beta, eye = 1.3, torch.eye(d, dtype=torch.float64)
    aux, g = normal(d, 20), normal(d, 20, seed=1)
    u = torch.softmax(beta * aux, 0)

    def matrix(j):
        covariance = torch.diag(u[:, j]) - torch.outer(u[:, j], u[:, j])
        if jacobian == "exact":
            return beta * covariance
        if jacobian == "reference":
            return beta * (eye - torch.outer(u[:, j], u[:, j]))
        if jacobian == "straight_through":
            return beta * eye
        return beta * ((1 - jacobian) * eye + jacobian * d * covariance)

    product = Softmax(jacobian).planes_vjp(u, g.clone(), beta, aux)
    torch.testing.assert_close(product, per_variable(matrix, centred(g)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("jacobian", "factor"),
    [
        ("exact", lambda t: (1 - t**2) / 2),
        ("reference", lambda t: 1 - t**2 / 2),
        ("straight_through", lambda t: 1 + 0 * t),
        (0.3, lambda t: 1 - 0.3 * t**2),
    ],
)
def test_softmax_pair_products_are_the_factors_it_documents(jacobian, factor):
    beta, aux, delta = 1.3, normal(20), normal(20, seed=1)
    t = torch.tanh(beta * aux)
    product = Softmax(jacobian).mean_vjp(t, delta.clone(), beta, aux, pair())
    torch.testing.assert_close(product, beta * factor(t) * delta, rtol=0, atol=1e-14)


def test_hardmax_product_of_two_labels_is_the_matrix_of_appendix_b1():
    aux, g = normal(2, 100), normal(2, 100, seed=1)
    aux[:, 0], aux[:, 1], aux[:, 2] = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    upsilon = aux[0] - aux[1]
    assert (upsilon.abs() <= 1).sum() > 10
    assert (upsilon.abs() > 1).sum() > 10

    def matrix(j):
        inside = float(abs(upsilon[j]) <= 1)
        return 0.5 * torch.tensor([[inside, -inside], [-inside, inside]], dtype=torch.float64)

    product = Hardmax().planes_vjp(Hardmax().planes(aux, 1.0), g.clone(), 1.0, aux)
    torch.testing.assert_close(product, per_variable(matrix, g), rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [3, 4])
def test_hardmax_product_of_more_labels_centres_unless_the_winner_leads_by_more_than_one(d):
    aux, g = normal(d, 100), normal(d, 100, seed=1)
    aux[:, 0], aux[0, 0] = 0.0, 1.0  # leads by exactly 1
    lead = np.sort(aux.numpy(), axis=0)[-1] - np.sort(aux.numpy(), axis=0)[-2]
    assert (lead > 1).any()

    def matrix(j):
        return (lead[j] <= 1) * (torch.eye(d, dtype=torch.float64) - torch.ones(d, d, dtype=torch.float64) / d)

    product = Hardmax().planes_vjp(Hardmax().planes(aux, 1.0), g.clone(), 1.0, aux)
    torch.testing.assert_close(product, per_variable(matrix, g), rtol=0, atol=1e-14)
    assert product[:, 0].abs().max() > 0


@pytest.mark.parametrize("beta", [0.4, 1.0, 3.0])
@cases(ALL)
def test_pair_product_is_half_the_difference_of_the_planes_product(projection, beta):
    aux, g = normal(200), normal(2, 200, seed=1)
    aux[0], aux[1], aux[2] = 0.5, -0.5, 0.0  # where hardmax's mask ends, and sparsemax's support for beta = 1
    planes = projection.planes_vjp(projection.planes(as_planes(aux), beta), g.clone(), beta, as_planes(aux))
    product = projection.mean_vjp(projection.mean(aux, pair(), beta), (g[1] - g[0]) / 2, beta, aux, pair())
    assert product.abs().max() > 0
    torch.testing.assert_close(product, (planes[1] - planes[0]) / 2, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 4])
@cases(ALL)
def test_weights_product_is_the_planes_product_of_the_outer_gradient(projection, d):
    aux, g, beta = normal(d, 50), normal(50, seed=1), 0.9
    q = centred(normal(d, 1, seed=2))
    u = projection.planes(aux, beta)
    truth = projection.planes_vjp(u, q @ g[None], beta, aux)
    product = projection.weights_vjp(u.clone(), q, (u * q).sum(0), g.clone(), beta, aux)
    torch.testing.assert_close(product, truth, rtol=0, atol=1e-13)


# --- with which inputs it holds


@pytest.mark.parametrize("d", [2, 3, 9])
@cases(MAPS)
def test_out_receives_the_same_result(projection, d):
    aux, pair_aux = normal(d, 20), normal(20)
    out, pair_out = torch.full_like(aux, 7.0), torch.full_like(pair_aux, 7.0)
    assert projection.planes(aux, 0.9, out=out) is out
    assert projection.mean(pair_aux, pair(), 0.9, out=pair_out) is pair_out
    assert torch.equal(out, projection.planes(aux, 0.9))
    assert torch.equal(pair_out, projection.mean(pair_aux, pair(), 0.9))


@pytest.mark.parametrize("d", [2, 3, 9])
@cases({"softmax": Softmax(), "sparsemax": Sparsemax()})
def test_planes_can_be_projected_in_place(projection, d):
    aux = normal(d, 20)
    expected = projection.planes(aux, 0.9)
    assert torch.equal(projection.planes(aux, 0.9, out=aux), expected)


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-6, 1.0, 1e6, 1e37, 3e38])
@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e4])
@cases(MAPS)
def test_extreme_inputs_stay_finite_and_on_the_simplex(projection, beta, size):
    for d in (2, 3, 9):
        aux = size * (2 * torch.rand(d, 300, generator=torch.Generator().manual_seed(d)) - 1)
        aux[:, :100] = size * aux[:, :100].sign()  # ties, and the largest differences
        u, t = projection.planes(aux, beta), projection.mean(aux[0], pair(aux.dtype), beta)
        assert u.dtype == t.dtype == torch.float32
        assert (u >= 0).all()
        assert u.sum(0).numpy() == pytest.approx(np.ones(300), abs=1e-5)
        assert (t.abs() <= 1).all()


@pytest.mark.parametrize("size", [0.0, 1e-40, 1.0, 1e37])
@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e4])
@cases(ALL)
def test_products_are_finite_at_extreme_inputs(projection, beta, size):
    for d in (2, 3, 9):
        aux, g = size * normal(d, 100, dtype=torch.float32).clamp(-1, 1), normal(d, 100, dtype=torch.float32)
        assert projection.planes_vjp(projection.planes(aux, beta), g, beta, aux).isfinite().all()
        t = projection.mean(aux[0], pair(aux.dtype), beta)
        assert projection.mean_vjp(t, g[0], beta, aux[0], pair(aux.dtype)).isfinite().all()


@pytest.mark.parametrize("jacobian", ["Exact", "", 1.5, -0.1, float("nan"), float("inf"), None])
def test_an_unknown_jacobian_is_refused(jacobian):
    with pytest.raises(BadSetting, match="one of exact, reference, straight_through or a number between 0 and 1"):
        Softmax(jacobian)


# --- properties on inputs that hypothesis looks for

thorough = settings(max_examples=80, deadline=None, derandomize=True)
betas = st.floats(1e-3, 1e4)


@st.composite
def planes_of(draw, entries, to_entry=float, dtype=torch.float64):
    """A tensor (d, m)."""
    d, m = draw(st.integers(2, 6)), draw(st.integers(1, 5))
    numbers = draw(st.lists(entries, min_size=d * m, max_size=d * m))
    return torch.tensor([to_entry(n) for n in numbers], dtype=dtype).view(d, m)


# Multiples of 1/8 of moderate size: their sums and differences are exact, so ties and orders are not blurred.
eighths = planes_of(st.integers(-400, 400), lambda n: n / 8)
singles = planes_of(st.floats(-(2.0**123), 2.0**123, width=32), dtype=torch.float32)


@cases(MAPS)
@thorough
@given(aux=singles, beta=betas)
def test_projections_land_on_the_simplex(projection, aux, beta):
    u, t = projection.planes(aux, beta), projection.mean(aux[0], pair(aux.dtype), beta)
    assert (u >= 0).all()
    assert (u.sum(0) - 1).abs().max() <= 1e-5
    assert (t.abs() <= 1).all()


@cases(MAPS)
@thorough
@given(aux=eighths, beta=betas)
def test_projections_keep_the_order_of_labels(projection, aux, beta):
    u = projection.planes(aux, beta)
    for a, b in itertools.permutations(range(len(aux)), 2):
        assert (u[a] >= u[b])[aux[a] > aux[b]].all()


@cases({"softmax": Softmax(), "sparsemax": Sparsemax()})
@thorough
@given(aux=eighths, beta=betas)
def test_equal_labels_get_equal_shares(projection, aux, beta):
    aux[1] = aux[0]
    u = projection.planes(aux, beta)
    assert torch.equal(u[0], u[1])


@cases(MAPS)
@thorough
@given(aux=eighths, beta=betas, shift=st.integers(-10_000, 10_000))
def test_projections_ignore_a_shift_of_all_labels(projection, aux, beta, shift):
    torch.testing.assert_close(
        projection.planes(aux + shift / 8, beta), projection.planes(aux, beta), rtol=0, atol=1e-12
    )


@cases(MAPS)
@thorough
@given(aux=eighths, beta=betas, data=st.data())
def test_permuted_labels_have_permuted_projections(projection, aux, beta, data):
    aux = aux + torch.arange(len(aux))[:, None] / 1024  # no ties, of which hardmax takes the first
    order = data.draw(st.permutations(range(len(aux))))
    torch.testing.assert_close(
        projection.planes(aux[order], beta), projection.planes(aux, beta)[order], rtol=0, atol=1e-12
    )
