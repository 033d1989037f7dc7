"""Mixed inputs are another basis: energies stay, and weights come back."""

import pytest
import torch

from mrfquant.labelling import mixing
from mrfquant.labelling.mixing import Mixing, mixed

SIZES = [1, 2, 3, 8, 9, 12, 27, 144, 576]


def some(n, rows, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(3 * n, n, generator=random, dtype=torch.float64) * torch.rand(n, generator=random).exp()
    return torch.randn(n, rows, generator=random, dtype=torch.float64), x.T @ x / len(x)


@pytest.mark.parametrize("n", SIZES)
def test_the_matrix_is_orthogonal_symmetric_and_mixes_all_inputs(n):
    matrix = mixed(torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(matrix, matrix.T)
    assert n < 8 or matrix.abs().max() <= 2 / n**0.5


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_energies_stay_and_weights_come_back(n, each):
    w, a = some(n, 5)
    basis = Mixing.fitted(w, a, each)
    assert len(basis.exponents) == (n if each else 1)
    new, moments = basis.weights(w), basis.moments(a)
    torch.testing.assert_close((new * (moments @ new)).sum(0), (w * (a @ w)).sum(0))
    torch.testing.assert_close(basis.unmixed(new), w.T)


def test_mixed_weights_are_alike_in_size_and_so_are_inputs():
    w, a = some(64, 200)
    w, a = w * torch.logspace(-2, 1, 64)[:, None], a * torch.logspace(0, 2, 64) * torch.logspace(0, 2, 64)[:, None]
    basis = Mixing.fitted(w, a)
    size, curvature = basis.weights(w).square().mean(1).sqrt(), basis.moments(a).diagonal()
    assert size.max() < 2 * size.min()
    assert curvature.max() < 4 * curvature.min()
    assert size.mean() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("n", "rows"), [(1, 1), (9, 5), (27, 64), (144, 65), (576, 130)])
def test_compiled_and_torch_agree_to_the_bit(n, rows, monkeypatch):
    pytest.importorskip("numba")
    random = torch.Generator().manual_seed(0)
    basis = Mixing(torch.randint(-20, 20, (n,), generator=random).to(torch.int8))
    w = torch.randn(n, rows, generator=random)
    compiled = basis.unmixed(w)
    monkeypatch.setattr(mixing.dispatch, "loops", lambda module: None)
    assert torch.equal(basis.unmixed(w), compiled)


def test_zeros_are_no_trouble():
    w, a = some(16, 4)
    w[3] = 0
    assert Mixing.fitted(w, a).weights(w).isfinite().all()
    assert (Mixing.fitted(0 * w, a).weights(0 * w) == 0).all()
