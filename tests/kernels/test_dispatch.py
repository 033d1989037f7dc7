"""The chains that are compiled give what torch's operations give, in float64, for every variable and any beta."""

import copy

import numpy as np
import pytest
import torch

from mrfquant.inference import ProximalMeanField
from mrfquant.kernels import dispatch
from mrfquant.labelling import Labelling
from mrfquant.projections import Line, Softmax, Sparsemax
from mrfquant.schedules import Geometric

PAIR = Line(torch.tensor([-1.0, 1.0]), 0.0)
M = 2**14 + 77  # not a whole number of tiles
BETAS = [0.1, 1.0, 30.0, 1e4]

pytestmark = pytest.mark.skipif(dispatch.loops("simplex") is None, reason="numba is not installed")


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def _threads(request, monkeypatch):
    monkeypatch.setattr("mrfquant.kernels.dispatch.THREAD_SHARE", 5000)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("d", [2, 3, 4, 16])
def test_planes_and_weights(d, beta):
    aux, q, out, w = normal(d, M), normal(d, seed=1), torch.empty(d, M), torch.empty(M)
    assert dispatch.usable(aux, q, out, w)
    Softmax().weights(aux, q, beta, out, w)
    u = ((aux - aux.amax(0)).double() * beta).softmax(0)
    assert torch.allclose(out.double(), u, atol=1e-6, rtol=0)
    assert torch.allclose(w.double(), q.double() @ u, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("beta", BETAS)
def test_pair(beta):
    aux, out = normal(M), torch.empty(M)
    aux[:3] = torch.tensor([0.0, 1e38, -1e38])
    assert dispatch.usable(aux, out)
    Softmax().mean(aux, PAIR, beta, out)
    assert torch.allclose(out.double(), (aux.double() * beta).tanh(), atol=1e-6, rtol=0)


LINES = {
    "3": (-1, 0, 1),
    "4 uneven": (-2, -1, 1, 2),
    "6 uneven": (-4, -2, -1, 1, 2, 4),
    "5 not symmetric": (-1, 0, 1, 2, 5),
    "4 bits": range(16),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("beta", [*BETAS, 1000.0])
@pytest.mark.parametrize("levels", [*LINES.values(), range(256)], ids=[*LINES, "8 bits"])
def test_line(levels, beta):
    line = Line(torch.tensor(levels, dtype=torch.float32), 0.1)
    aux, out = normal(M) * (0.05 * line.top), torch.empty(M)
    aux[:5] = torch.tensor([0.0, 50.0, -50.0, 0.1, -0.1])
    assert dispatch.usable(aux, out)
    Softmax().mean(aux, line, beta, out)
    truth = Softmax().mean(aux.double(), Line(torch.tensor(levels, dtype=torch.float64), 0.1), beta)
    steepest = beta * line.top  # of t: a float's a is not more precise
    torch.testing.assert_close(out.double(), truth, atol=2e-6 + 1e-8 * steepest, rtol=0)
    assert out.abs().max() <= 1


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("jacobian", ["reference", "straight_through"])
@pytest.mark.parametrize("levels", LINES.values(), ids=LINES)
def test_products_of_lines(levels, jacobian):
    t, delta, beta = normal(M).tanh(), normal(M, seed=1), 3.0
    truth = Softmax(jacobian).mean_vjp(t.double(), delta.double(), beta, None, Line(torch.tensor(levels).double(), 0.1))
    line = Line(torch.tensor(levels).float(), 0.1)
    assert dispatch.usable(t, delta)
    found = Softmax(jacobian).mean_vjp(t, delta, beta, None, line)
    assert torch.allclose(found.double(), truth, atol=1e-5, rtol=1e-6)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("jacobian", ["exact", "reference"])
def test_products_of_planes(jacobian):
    u, q, g, beta = normal(4, M).softmax(0), torch.tensor([[-2.0], [-1], [1], [2]]), normal(M, seed=1), 3.0
    w = (q * u).sum(0)
    truth = Softmax(jacobian).weights_vjp(u.double(), q.double(), w.double(), g.double(), beta, None)
    assert dispatch.usable(u, q, w, g)
    found = Softmax(jacobian).weights_vjp(u, q, w, g, beta, None)
    assert torch.allclose(found.double(), truth, atol=1e-5, rtol=1e-6)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("jacobian", ["exact", "reference", "straight_through", 0.3])
def test_products_of_pairs(jacobian):
    t, delta, beta = normal(M).tanh(), normal(M, seed=1), 3.0
    truth = Softmax(jacobian).mean_vjp(t.double(), delta.double(), beta, None, PAIR)
    assert dispatch.usable(t, delta)
    assert torch.allclose(Softmax(jacobian).mean_vjp(t, delta, beta, None, PAIR).double(), truth, atol=1e-5, rtol=1e-6)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("d", [2, 3, 4, 16])
def test_sparsemax(d, beta):
    aux, g = normal(d, M), normal(d, M, seed=1)
    aux[:, :9] = aux[:, :9].round()  # equal values
    truth = Sparsemax().planes(aux.double(), beta)
    assert dispatch.usable(aux, g)
    u = Sparsemax().planes(aux, beta)
    # The rounding of a float32 difference is multiplied by beta.
    assert torch.allclose(u.double(), truth, atol=1e-6 * max(1, beta / 100), rtol=0)
    product = Sparsemax().planes_vjp(u.double(), g.double(), beta, None)
    assert torch.allclose(Sparsemax().planes_vjp(u, g, beta, None).double(), product, atol=1e-6 * max(1, beta))
    assert torch.equal(Sparsemax().planes(aux, beta, out=aux), u)


def test_large_values_and_what_is_no_number_pass_as_in_torch():
    aux = normal(3, M)
    aux[:, 0] = torch.tensor([1e38, -1e38, 0.0])
    aux[:, 1] = torch.tensor([-np.inf, 1.0, 1.0])
    aux[:, 2] = torch.tensor([np.nan, 0.0, 1.0])
    aux[:, 3] = torch.tensor([0.0, np.nan, 1.0])
    out, w, q = torch.empty_like(aux), torch.empty(M), torch.ones(3)
    Softmax().weights(aux, q, 1e4, out, w)
    assert torch.allclose(out, Softmax().planes(aux, 1e4), atol=1e-6, equal_nan=True)
    assert out[:, 0].tolist() == [1, 0, 0]
    assert out[:, 2:4].isnan().all()
    pair = torch.full((M,), np.nan)
    assert Softmax().mean(pair, PAIR, 2.0, torch.empty(M)).isnan().all()


@pytest.mark.parametrize("unfit", [lambda t: t.double(), lambda t: t[:, ::2], lambda t: t[:, :100].contiguous()])
def test_other_tensors_are_left_to_torch(unfit):
    assert not dispatch.usable(unfit(normal(4, M)))
    assert not dispatch.usable(normal(4, M).requires_grad_())


@pytest.mark.parametrize("levels", [[-1, 1], [0, 3], [-1, 0, 1], [-2, -1, 1, 2]])
def test_training_is_the_same_with_and_without(levels, monkeypatch):
    torch.manual_seed(0)
    network, images, labels = torch.nn.Linear(2000, 10), torch.randn(8, 2000), torch.randint(10, (8,))

    def train(model):
        torch.manual_seed(0)
        labelling = Labelling(model, levels, scale="layer")
        solver = ProximalMeanField(labelling, lambda p: torch.optim.Adam(p, lr=0.01), Geometric(1.5, interval=2))
        for _ in range(8):
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            solver.step()
        return labelling.labelled.w

    compiled = train(copy.deepcopy(network))
    monkeypatch.setattr(dispatch, "usable", lambda *tensors: False)
    assert torch.allclose(compiled, train(network), atol=1e-5)
