"""The contract of a projection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mrfquant.projections import Line, Projection
from mrfquant.testing.contract import Contract

STEP = 1e-5  # step of finite differences
VARIABLES = 40
SPACING = 0.3  # spacing of levels on a line


class ProjectionContract(Contract):
    """Contract test of projections. Inherit it and name your projection:

        class TestMyProjection(ProjectionContract):
            part = MyProjection

    Every check is made in float64 unless it says otherwise, for each number of labels in `label_counts`.

    A projection whose product is meant to be that of another matrix than its true Jacobian (a surrogate) says so by
    writing that matrix in `jacobian`; otherwise the product is compared with finite differences.

    Attributes:
        label_counts: the values of d.
        betas: the inverse temperatures at which products are compared.
        at_small_beta: what u tends to as beta goes to 0: 'uniform', 'vertex' if beta plays no role, None for
            neither.
    """

    label_counts: ClassVar[Sequence[int]] = (2, 3, 5)
    betas: ClassVar[Sequence[float]] = (0.4, 2.5)
    at_small_beta: ClassVar[Literal["uniform", "vertex"] | None] = "uniform"

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make every check that takes `labels` for each number of them."""
        if "labels" in metafunc.fixturenames:
            metafunc.parametrize("labels", self.label_counts, ids=[f"{d} labels" for d in self.label_counts])

    def build(self, **settings: Any) -> Projection:
        return self.part(**{**self.settings, **settings})

    def jacobian(self, u: Tensor, aux: Tensor, beta: float) -> Tensor:
        """Return the matrix of each variable that products are made with, (d, d, m): entry i, j is that of u_i and ũ_j.

        A product is its transpose times g - mean(g). By default it is the derivative of u_i by ũ_j, nan for the
        variables that have a kink or a jump within the step of the finite differences.
        """
        projection, columns, kinked = self.build(), [], torch.zeros_like(aux[0], dtype=torch.bool)
        for j in range(len(aux)):
            move = torch.zeros_like(aux)
            move[j] = STEP
            left, right = (u - projection.planes(aux - move, beta)), (projection.planes(aux + move, beta) - u)
            kinked |= ((right - left).abs() > 1e-3 * STEP * max(beta, 1.0) ** 2).any(0)
            columns.append((left + right) / (2 * STEP))
        return torch.stack(columns, 1).masked_fill(kinked, torch.nan)

    def test_u_lies_in_the_simplex(self, labels: int) -> None:
        """For small and large ũ and beta, and where labels are equal; in both precisions."""
        projection = self.build()
        for at, aux, beta in _extremes(labels):
            u, t = projection.planes(aux, beta), projection.mean(aux[0], _line(labels, aux.dtype), beta)
            assert u.shape == aux.shape, f"u has the shape {tuple(u.shape)}, ũ has {tuple(aux.shape)}"
            assert u.dtype == t.dtype == aux.dtype, f"u is in {u.dtype}, t in {t.dtype}, ũ in {aux.dtype}"
            assert u.isfinite().all(), f"u is not finite {at}"
            assert u.min() >= 0, f"a label has the probability {u.min():g} {at}"
            off = (u.sum(0) - 1).abs().max()
            assert off <= 1e-5, f"probabilities miss the sum 1 by {off:g} {at}"
            assert t.isfinite().all(), f"t is not finite {at}"
            assert t.abs().max() <= 1 + 1e-5, f"the mean t is beyond -1 and 1 {at}"

    def test_products_are_finite(self, labels: int) -> None:
        """Also where u is a vertex, or all labels are equal; in both precisions."""
        projection = self.build()
        for at, aux, beta in _extremes(labels):
            g, line = _normal(labels, 1, aux.dtype), _line(labels, aux.dtype)
            t = projection.mean(aux[0], line, beta)
            product = projection.mean_vjp(t, g[0].clone(), beta, aux[0], line)
            assert product.isfinite().all(), f"mean_vjp is not finite {at}"
            product = projection.planes_vjp(projection.planes(aux, beta), g, beta, aux)
            assert product.isfinite().all(), f"planes_vjp is not finite {at}"

    def test_a_constant_added_to_all_labels_changes_nothing(self, labels: int) -> None:
        projection, (aux, g), shift = self.build(), _pair_of(labels), _normal(1, seed=2) * 10
        for beta in self.betas:
            u, moved = projection.planes(aux, beta), projection.planes(aux + shift, beta)
            _close(moved, u, "u depends on what is added to all labels of a variable")
            products = [projection.planes_vjp(u.clone(), g.clone(), beta, x) for x in (aux, aux + shift)]
            _close(products[1], products[0], "the product depends on what is added to all labels of a variable")

    def test_every_variable_is_projected_by_itself(self, labels: int) -> None:
        projection, (aux, g) = self.build(), _pair_of(labels)
        for beta in self.betas:
            u = projection.planes(aux, beta)
            product = projection.planes_vjp(u.clone(), g.clone(), beta, aux)
            alone = projection.planes(aux[:, 3:5].contiguous(), beta)
            _close(alone, u[:, 3:5], "u of a variable depends on other variables")
            alone = projection.planes_vjp(alone, g[:, 3:5].clone(), beta, aux[:, 3:5].contiguous())
            _close(alone, product[:, 3:5], "the product of a variable depends on other variables")

    def test_the_largest_auxiliary_variable_has_the_largest_u(self, labels: int) -> None:
        """Solvers round by ũ, networks are rounded by u: both must name the same label."""
        projection, aux = self.build(), _normal(labels)
        for beta in (0.1, 1.0, 10.0):
            u = projection.planes(aux, beta)
            chosen = u.gather(0, aux.argmax(0, keepdim=True))
            assert (chosen >= u).all(), f"at beta {beta:g} another label than that of the largest ũ is the likeliest"

    def test_u_tends_to_a_vertex_as_beta_grows(self, labels: int) -> None:
        aux = _normal(labels)
        first, second = aux.topk(2, 0).values
        aux = aux[:, first - second > 0.1]
        _close(self.build().planes(aux, 1e4), _vertices(aux), "at beta 10,000 u is not the vertex of the largest ũ")

    def test_u_tends_to_what_is_stated_as_beta_vanishes(self, labels: int) -> None:
        if self.at_small_beta is None:
            return
        aux = _normal(labels)
        limit = _vertices(aux) if self.at_small_beta == "vertex" else torch.full_like(aux, 1 / labels)
        u = self.build().planes(aux, 1e-8)
        _close(u, limit, f"at beta 1e-8 u is not {self.at_small_beta}: set at_small_beta to what it is")

    def test_the_start_is_mapped_to_its_u(self, labels: int) -> None:
        """So that a run can begin at the weights of a network; if u is always a vertex, at the likeliest label."""
        projection, u = self.build(), 0.9 * _normal(labels).softmax(0) + 0.1 / labels
        for beta in self.betas:
            found = projection.planes(projection.planes_start(u.clone(), beta), beta)
            if self.at_small_beta == "vertex":
                assert torch.equal(found.argmax(0), u.argmax(0)), "planes_start does not lead to the likeliest label"
                continue
            _close(found, u, "planes_start does not lead to the u it was given", 1e-3)

    def test_the_product_is_that_of_the_jacobian(self, labels: int) -> None:
        projection, (aux, g) = self.build(), _pair_of(labels)
        for beta in self.betas:
            u = projection.planes(aux, beta)
            matrix = self.jacobian(u.clone(), aux.clone(), beta)
            smooth = matrix.isfinite().all(0).all(0)
            assert smooth.sum() >= VARIABLES / 2, f"u has no derivative at most of the points tried, beta {beta:g}"
            expected = torch.einsum("ijm,im->jm", matrix, g - g.mean(0))[:, smooth]
            product = projection.planes_vjp(u, g.clone(), beta, aux)
            assert product.shape == aux.shape, f"a product of shape {tuple(product.shape)} for ũ {tuple(aux.shape)}"
            what = "planes_vjp is not the product with the Jacobian (write `jacobian` if another matrix is meant)"
            _close(product[:, smooth], expected, f"{what}, beta {beta:g}", 1e-6 * beta)

    def test_weights_and_their_product_are_those_of_the_planes(self, labels: int) -> None:
        projection, (aux, g), q = self.build(), _pair_of(labels), torch.linspace(-1, 2, labels, dtype=torch.float64)
        centred = (q - q.mean())[:, None]
        for beta in self.betas:
            u, out, w = projection.planes(aux, beta), torch.empty_like(aux), torch.empty_like(aux[0])
            projection.weights(aux, q, beta, out, w)
            _close(out, u, "weights gives another u than planes")
            _close(w, q @ u, "weights does not give the expectation of q under u")
            expected = projection.planes_vjp(u.clone(), centred * g[0], beta, aux)
            mean = w - q.mean()
            product = projection.weights_vjp(u.clone(), centred, mean, g[0].clone(), beta, aux)
            _close(product, expected, "weights_vjp is not planes_vjp of q g")
            sizes, costs = (VARIABLES - 3, 3), g[:, :2].T
            each = torch.repeat_interleave(costs.T, torch.tensor(sizes), 1)
            expected = projection.planes_vjp(u.clone(), centred * g[0] + each, beta, aux)
            product = projection.weights_vjp(u, centred, None, g[0].clone(), beta, aux, (sizes, costs))
            _close(product, expected, "weights_vjp with costs c is not planes_vjp of q g + c")

    def test_the_line_is_a_line_of_planes(self, labels: int) -> None:
        """With even and uneven levels; for two labels it is the pair form, whose spacing plays no role."""
        projection, (aux, g) = self.build(), _pair_of(labels)
        a = aux[0].clone()
        a[0] = 0.0
        for levels, beta in itertools.product((torch.arange(labels), torch.arange(labels) ** 2 - 2), self.betas):
            line = Line(levels.to(a.dtype), 0.0 if labels == 2 else SPACING)
            planes = line.planes(a)
            u, t = projection.planes(planes, beta), projection.mean(a, line, beta)
            p = (2 * (levels - levels[0]) / (levels[-1] - levels[0]) - 1).to(a.dtype)
            _close(t, p @ u, "mean is not that of the levels under the u of planes")
            assert torch.equal(line.labels(a).long(), planes.argmax(0)), (
                "the nearest level is not that of the largest ũ"
            )
            v = projection.planes_vjp(u, p[:, None] * g[0], beta, planes)
            moved = torch.linalg.lstsq(torch.stack([line.p, torch.ones_like(line.p)], 1), v).solution[0]
            product = projection.mean_vjp(t, g[0].clone(), beta, a, line)
            _close(product, moved, "mean_vjp is not what comes closest to planes_vjp")

    def test_the_start_on_the_line_is_mapped_to_its_mean(self, labels: int) -> None:
        projection, t, line = self.build(), 0.9 * _normal(1).tanh()[0], _line(labels)
        for beta in self.betas:
            found = projection.mean(projection.mean_start(t.clone(), line, beta), line, beta)
            off = 1 / (labels - 1) if self.at_small_beta == "vertex" else 0.0  # half the distance of the levels
            assert (found - t).abs().max() <= off + (1e-3 if labels == 2 else 1e-6), "mean_start does not lead to its t"

    def test_only_out_and_gradients_are_overwritten(self, labels: int) -> None:
        projection, (aux, g), beta = self.build(), _pair_of(labels), self.betas[0]
        line, q = _line(labels), torch.arange(labels, dtype=aux.dtype)
        u, t = projection.planes(aux, beta), projection.mean(aux[0], line, beta)
        read = {"ũ": aux, "u": u, "t": t, "q": q}
        before = {name: x.clone() for name, x in read.items()}
        projection.planes(aux, beta, torch.empty_like(aux))
        projection.weights(aux, q, beta, torch.empty_like(aux), torch.empty_like(t))
        projection.mean(aux[0], line, beta, torch.empty_like(t))
        projection.planes_vjp(u, g.clone(), beta, aux)
        projection.weights_vjp(u.clone(), q[:, None], q @ u, g[0].clone(), beta, aux)
        projection.mean_vjp(t, g[0].clone(), beta, aux[0], line)
        for name, x in read.items():
            assert torch.equal(x, before[name]), f"{name} has changed, which may only be read"

    def test_out_receives_u_and_may_be_the_auxiliary_variables(self, labels: int) -> None:
        projection, aux, line = self.build(), _normal(labels), _line(labels)
        forms = {
            "planes": (projection.planes, aux),
            "mean": (lambda x, beta, out=None: projection.mean(x, line, beta, out), aux[0].clone()),
        }
        for name, (project, x) in forms.items():
            expected = project(x, 0.9)
            for where, out in (("out", torch.full_like(x, 7.0)), ("an `out` that is ũ itself", x.clone())):
                given = out if where != "out" else x
                assert project(given, 0.9, out=out) is out, f"{name} does not return `out`"
                assert torch.equal(out, expected), f"{name} writes something else to {where} than it returns"


def _normal(labels: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(labels, VARIABLES, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _line(labels: int, dtype: torch.dtype = torch.float64) -> Line:
    return Line(torch.arange(labels, dtype=dtype), SPACING)


def _extremes(labels: int) -> Iterator[tuple[str, Tensor, float]]:
    """Yield small and large ũ (d, m), with ties, and beta, in both precisions; with words for a message."""
    sizes, betas = (0.0, 1e-6, 1.0, 1e6), (1e-3, 1.0, 1e4)
    for dtype, size, beta in itertools.product((torch.float32, torch.float64), sizes, betas):
        aux = size * _normal(labels, dtype=dtype).clamp(-1, 1)
        aux[:, :10] = size * aux[:, :10].sign()  # ties, and the largest differences
        aux[:, 10:15] = aux[0, 10:15]
        yield f"for ũ of size {size:g} and beta {beta:g} in {dtype}", aux, beta


def _pair_of(labels: int) -> tuple[Tensor, Tensor]:
    """Return ũ and a gradient with respect to u: (d, m) each."""
    return _normal(labels), _normal(labels, seed=1)


def _vertices(aux: Tensor) -> Tensor:
    return torch.zeros_like(aux).scatter_(0, aux.argmax(0, keepdim=True), 1)


def _close(found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-6) -> None:
    off = (found - expected).abs().max().item()
    assert off <= tolerance, f"{what}: off by {off:.2g}"
