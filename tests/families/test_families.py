"""Families and their distributions agree with plain sums, searches and scipy, for any levels and scales."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mrfquant as mq
from mrfquant.families import Independent, LineFamily, PairFamily, PlanesFamily, family_of
from mrfquant.families.base import INIT_LABEL_FLOOR
from mrfquant.families.distribution import PairOfLabels
from mrfquant.labelling import Block, LevelSet
from mrfquant.labelling.scales import RunScales
from mrfquant.projections import Hardmax, Softmax, Sparsemax

RANDOM = np.random.default_rng(0)
PAIRS = [(-1, 1), (0, 1), (-2, 2), (-0.3, 1.1), (3, 4), *(tuple(RANDOM.normal(size=2)) for _ in range(3))]
MORE = [(-1, 0, 1), (-2, -1, 1, 2), (0, 1, 4), *(tuple(RANDOM.normal(size=d)) for d in (3, 4, 7))]
FEW = [(-1, 1), (0, 1), (-1, 0, 1), (-2, -1, 1, 2)]
FAMILIES = {"pair": [(-0.3, 1.1)], "line": [(-1, 0, 1), (0, 1, 4)], "planes": [(-1, 0, 1), (0, 1, 4)]}
CASES = [(form, levels) for form, sets in FAMILIES.items() for levels in sets]


def block(levels, m, scale=False, dtype=torch.float64, sizes=()):
    """A block in the middle of a longer vector, as in a labelling."""
    w, g = torch.full((m + 7,), 99.0, dtype=dtype), torch.zeros(m + 7, dtype=dtype)
    scales = RunScales(torch.linspace(0.3, 2.0, m, dtype=dtype), torch.arange(4, m + 4), 3, m) if scale else None
    return Block(LevelSet(levels), 3, w[3 : m + 3], g[3 : m + 3], scales, parameter_sizes=sizes)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def family(form, of, projection=None, spacing=0.3):
    return family_of(of, projection or Softmax("exact"), "planes" if form == "planes" else "line", spacing)


def variables(of, seed=0):
    """x for a family, of both signs."""
    shape = (of.block.m,) if of.numbers == 1 else (of.numbers, of.block.m)
    return normal(*shape, seed=seed, dtype=of.block.w.dtype)


def probabilities(d, m, dtype=torch.float64):
    """u (d, m) with decided and half-decided weights among the random ones."""
    u = np.random.default_rng(0).dirichlet(np.ones(d), size=m)
    u[:d] = np.eye(d)
    u[d] = np.r_[0.5, 0.5, np.zeros(d - 2)]
    return torch.as_tensor(u.T.copy(), dtype=dtype)


def distribution(of, u):
    """Of given probabilities (d, m), as families of so many levels make it."""
    return PairOfLabels(of, lambda: u[1] - u[0]) if of.d == 2 else Independent(of, u)


def scales(of):
    return np.ones(of.m) if of.scale is None else of.scale.double().numpy()


# --- the choice


def test_a_line_has_a_number_a_weight_and_planes_one_a_label():
    assert type(family("planes", block((-1, 1), 4))) is PlanesFamily
    assert type(family("line", block((-1, 1), 4))) is PairFamily
    assert type(family("line", block((-1, 0, 1), 4))) is LineFamily
    assert type(family("planes", block((-1, 0, 1), 4))) is PlanesFamily


def test_a_level_set_may_name_its_own_family():
    class Own(PlanesFamily):
        pass

    class Levels(LevelSet):
        family = Own

    w = torch.zeros(4)
    assert type(family("line", Block(Levels((-1, 1)), 0, w, w.clone()))) is Own


# --- weights


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("levels", PAIRS + MORE)
@pytest.mark.parametrize("form", ["line", "planes"])
def test_written_weights_are_the_mean_of_the_distribution(form, levels, scale):
    b = block(levels, 40, scale)
    of = family(form, b)
    x = variables(of)
    of.write(x, 1.7)
    p = of.distribution(x, 1.7)
    u = p.probabilities()
    planes = x if of.numbers > 1 else of.line.planes(x)
    assert u.numpy() == pytest.approx(torch.softmax(1.7 * planes, 0).numpy(), abs=1e-12)
    expected = scales(b) * (u.T.numpy() @ np.sort(levels))
    assert b.w.numpy() == pytest.approx(expected, abs=1e-12)
    assert p.mean().numpy() == pytest.approx(expected, abs=1e-12)
    assert b.unscaled_weights().numpy() == pytest.approx(expected / scales(b), abs=1e-12)
    whole = torch.empty(0, dtype=b.w.dtype).set_(b.w.untyped_storage())
    assert (whole[:3] == 99).all()  # the rest of the vector is left alone
    assert (whole[43:] == 99).all()


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("levels", [(-0.09, 1.46), (1.65, 1.87), (-1.68, -0.72)])
def test_a_decided_pair_read_off_single_precision_weights_has_no_entropy(levels, scale):
    of = family("pair", block(levels, 40, scale, torch.float32))
    for sign in (-1.0, 1.0):
        x = torch.full((40,), sign)
        of.write(x, 1e4)
        assert (of.distribution(x, 1e4).entropy().abs() < 1e-4).all()


def test_sparsemax_stops_the_gradient_of_decided_pairs_read_off_single_precision_weights():
    leaking = []
    for levels in RANDOM.normal(size=(50, 2)).round(2):
        of, x = family("pair", block(levels, 2, dtype=torch.float32), Sparsemax()), torch.tensor([-3.0, 3.0])
        of.write(x, 1.0)
        if of.pull_back(mq.Gradient(weights=torch.ones(2)), x, 1.0, 1.0).any():
            leaking.append(tuple(levels))
    assert leaking == []


# --- gradients


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("parts", ["weights", "costs", "marginals", "all"])
@pytest.mark.parametrize(("form", "levels"), CASES)
def test_what_is_pulled_back_moves_x_as_autograd_would(form, levels, parts, scale):
    """With the exact Jacobian; on a line, the step is the derivative over <p, p>, see `Line`."""
    b, beta = block(levels, 30, scale, sizes=(20, 10)), 0.8
    of = family(form, b)
    x = variables(of)
    of.write(x, beta)
    every = {"weights": normal(30, seed=1), "costs": normal(2, b.d, seed=2), "marginals": normal(b.d, 30, seed=3)}
    chosen = every if parts == "all" else {parts: every[parts]}
    leaf = x.clone().requires_grad_()
    u = torch.softmax(beta * (leaf if of.numbers > 1 else of.line.planes(leaf)), 0)
    on_labels = mq.Gradient(**chosen).on_labels(b)
    (truth,) = torch.autograd.grad((on_labels * u).sum(), leaf)
    if of.numbers == 1:
        truth = truth / of.line.square
    given = {name: part.clone() for name, part in chosen.items()}
    found = of.pull_back(mq.Gradient(**given), x, beta, beta)
    assert found.numpy() == pytest.approx(truth.numpy(), abs=1e-12)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(("form", "levels"), CASES)
def test_all_parts_of_a_gradient_together_are_one_with_respect_to_u(form, levels, scale):
    """`pull_back` and `mean_gradient` of three parts are those of `on_labels`, also with a surrogate Jacobian."""
    for projection in (Softmax("exact"), Softmax("reference"), Sparsemax(), Hardmax()):
        found = []
        for whole in (False, True):
            b = block(levels, 30, scale, sizes=(20, 10))
            of = family(form, b, projection)
            x = variables(of)
            of.write(x, 0.8)
            for method, more in ((of.mean_gradient, ()), (of.pull_back, (0.8,))):
                gradient = mq.Gradient(normal(30, seed=1), normal(2, b.d, seed=2), normal(b.d, 30, seed=3))
                given = mq.Gradient(marginals=gradient.on_labels(b)) if whole else gradient
                found.append(method(given, x, 0.8, *more))
        for one, other in zip(found[:2], found[2:], strict=True):
            assert one.numpy() == pytest.approx(other.numpy(), abs=1e-12)


def test_a_sum_of_gradients_is_the_sum_of_their_parts():
    b = block((-1, 0, 1), 30, True, sizes=(20, 10))
    one = mq.Gradient(normal(30), None, normal(3, 30, seed=1))
    two = mq.Gradient(normal(30, seed=2), normal(2, 3, seed=3))
    expected = one.on_labels(b) + 0.5 * two.on_labels(b)
    assert one.plus(two, 0.5).on_labels(b).numpy() == pytest.approx(expected.numpy(), abs=1e-12)
    assert mq.Gradient().plus(one).weights is one.weights  # no copy, which a step would pay for


# --- starts


@pytest.mark.parametrize("projection", [Softmax(), Sparsemax()])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(("form", "levels"), CASES)
def test_a_start_at_weights_has_them_as_its_mean(form, levels, scale, projection):
    b = block(levels, 40, scale)
    of = family(form, b, projection)
    low, high = b.levels.values[0], b.levels.values[-1]
    w = torch.linspace(low - 1, high + 1, 40, dtype=torch.float64)
    of.write(of.start_at(w.clone(), 1.3), 1.3)
    assert (b.unscaled_weights() - w.clamp(low, high)).abs().max() <= INIT_LABEL_FLOOR * (high - low) + 1e-6
    u = of.distribution(of.start_at(w.clone(), 1.3), 1.3).probabilities()
    if isinstance(projection, Softmax):
        assert (u > 0).all()  # every label can be reached


@pytest.mark.parametrize(("form", "levels"), [("pair", (-0.3, 1.1)), ("planes", (0, 1, 4))])
def test_a_start_as_mean_parameters_is_its_u(form, levels):
    b = block(levels, 40)
    of = family(form, b)
    w = torch.linspace(b.levels.values[0], b.levels.values[-1], 40, dtype=torch.float64)
    x, there = of.start_at(w.clone(), 1.0, as_mean=True), of.start_at(w.clone(), 1.0)
    of.project(there, 1.0)
    assert x.numpy() == pytest.approx(there.numpy(), abs=1e-9)


# --- labels


@pytest.mark.parametrize("levels", PAIRS + MORE)
@pytest.mark.parametrize("form", ["line", "planes"])
def test_the_mode_is_the_first_of_the_likeliest_labels(form, levels):
    of = family(form, block(levels, 60))
    x = variables(of).mul(2).round().div(4)  # with ties
    planes = x if of.numbers > 1 else of.line.planes(x)
    labels = of.labels(x, 3.0)
    likeliest = planes.amax(0)
    assert labels.dtype == torch.int32
    assert (planes.gather(0, labels.long()[None])[0] >= likeliest - 1e-12).all()
    if of.numbers > 1:
        assert labels.tolist() == [next(i for i in range(len(x)) if x[i, j] == likeliest[j]) for j in range(60)]


def test_a_pair_between_its_labels_takes_the_lower():
    of = family("pair", block((-1, 1), 5, dtype=torch.float32))
    assert of.labels(torch.tensor([-1.0, -0.1, 0.0, 1e-30, 1.0]), 1.0).tolist() == [0, 0, 0, 1, 1]


# --- statistics


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("levels", FEW)
def test_mean_and_variance_are_those_of_scipy(levels, scale):
    b = block(levels, 30, scale)
    u = probabilities(b.d, 30)
    p = distribution(b, u)
    assert p.probabilities().numpy() == pytest.approx(u.numpy(), abs=1e-15)
    for j in range(30):
        truth = scipy.stats.rv_discrete(values=(np.arange(b.d), u[:, j].numpy()))
        mean = truth.expect(lambda k: np.array(b.levels.values)[k.astype(int)])
        square = truth.expect(lambda k: np.array(b.levels.values)[k.astype(int)] ** 2)
        assert p.mean()[j].item() == pytest.approx(scales(b)[j] * mean, abs=1e-12)
        assert p.variance()[j].item() == pytest.approx(scales(b)[j] ** 2 * (square - mean**2), abs=1e-12)


@pytest.mark.parametrize("levels", FEW)
def test_samples_are_as_frequent_as_u_says(levels):
    b, m = block(levels, 60_000, dtype=torch.float32), 60_000
    u = torch.tensor([0.45, 0.05, 0.3, 0.2][: b.d])
    u = u / u.sum()
    drawn = distribution(b, u[:, None].expand(-1, m)).sample(torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.int32
    counts = np.bincount(drawn.numpy(), minlength=b.d)
    assert scipy.stats.chisquare(counts, m * u.double().numpy() / u.double().sum().item()).pvalue > 1e-3


@pytest.mark.parametrize("levels", FEW)
def test_decided_weights_are_sampled_at_their_label(levels):
    b = block(levels, 999)
    labels = torch.arange(999) % b.d
    p = distribution(b, torch.nn.functional.one_hot(labels, b.d).T.double())
    assert p.sample(torch.Generator().manual_seed(0)).tolist() == labels.tolist()


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1)])
def test_each_weight_is_sampled_on_its_own_and_by_the_generator(levels):
    b = block(levels, 1000)
    p = distribution(b, torch.full((b.d, 1000), 1 / b.d, dtype=torch.float64))
    first, again, other = (p.sample(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.unique()) == b.d


@pytest.mark.parametrize("levels", FEW)
def test_entropy_is_scipys_in_bits(levels):
    b = block(levels, 50)
    u = probabilities(b.d, 50)
    found = distribution(b, u).entropy()
    assert found.numpy() == pytest.approx(scipy.stats.entropy(u.numpy(), base=2), abs=1e-12)
    undecided = distribution(b, torch.full((b.d, 1), 1 / b.d, dtype=torch.float64)).entropy()
    assert undecided.item() == pytest.approx(np.log2(b.d))


def test_a_weight_is_decided_once_one_label_reaches_the_threshold():
    u = torch.tensor([[0.98, 0.01, 0.5, 0.0], [0.02, 0.99, 0.5, 1.0]], dtype=torch.float64)
    pair = distribution(block((-1, 1), 4), u)
    assert pair.decided(0.9899).tolist() == [False, True, False, True]
    assert pair.decided(0.97).tolist() == [True, True, False, True]
    planes = distribution(block((-1, 0, 1), 4), torch.cat([u, torch.zeros(1, 4)]))
    assert planes.decided(0.99).tolist() == [False, True, False, True]


def test_chunks_are_one_distribution(monkeypatch):
    """A line makes the probabilities of so many weights at once, and joins what it finds out."""
    of = family("line", block((-1, 0, 1), 100))
    x = variables(of)
    of.write(x, 2.0)
    p = of.distribution(x, 2.0)
    expected = [p.probabilities(), p.mean(), p.variance(), p.entropy(), p.decided(0.5)]
    monkeypatch.setattr("mrfquant.families.line.CHUNK", 7)
    found = [p.probabilities(), p.mean(), p.variance(), p.entropy(), p.decided(0.5)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert p.sample(torch.Generator().manual_seed(0)).shape == (100,)


# --- properties on inputs that hypothesis looks for

thorough = settings(max_examples=80, deadline=None, derandomize=True)
level_sets = st.lists(st.integers(-400, 400).map(lambda n: n / 100), min_size=2, max_size=6, unique=True)


@st.composite
def families_with_x(draw, projection):
    """A single-precision family, with or without scales, and variables for it."""
    b = block(draw(level_sets), draw(st.integers(1, 6)), draw(st.booleans()), torch.float32)
    of = family(draw(st.sampled_from(["line", "planes"])), b, projection)
    count = of.numbers * b.m
    x = torch.tensor(draw(st.lists(st.floats(-8, 8, width=32), min_size=count, max_size=count)))
    return of, x if of.numbers == 1 else x.view(of.numbers, b.m)


@thorough
@given(problem=families_with_x(Softmax()))
def test_rounding_gives_only_levels(problem):
    of, x = problem
    b = of.block
    for labels in (of.labels(x, 1.0), b.nearest(x if of.numbers == 1 else x[0])):
        b.write_labels(labels)
        for j in range(b.m):
            scale = np.float32(1) if b.scale is None else b.scale[j].numpy()
            assert b.w[j].numpy() in [np.float32(q) * scale for q in b.levels.values]


@pytest.mark.parametrize("projection", [Softmax(), Sparsemax()])
@thorough
@given(data=st.data(), beta=st.floats(1e-3, 1e4))
def test_expected_weights_stay_within_the_levels(projection, data, beta):
    of, x = data.draw(families_with_x(projection))
    of.write(x, beta)
    low, high = of.block.levels.values[0], of.block.levels.values[-1]
    tolerance = 1e-6 * max(1, abs(low), abs(high))
    w = of.block.unscaled_weights()
    assert (w >= low - tolerance).all()
    assert (w <= high + tolerance).all()
