"""A block's weights, labels and statistics agree with plain sums, searches and scipy."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.labelling import Block, LevelSet
from mrfquant.projections import Softmax, Sparsemax

RANDOM = np.random.default_rng(0)
PAIRS = [(-1, 1), (0, 1), (-2, 2), (-0.3, 1.1), (3, 4), *(tuple(RANDOM.normal(size=2)) for _ in range(3))]
MORE = [(-1, 0, 1), (-2, -1, 1, 2), (0, 1, 4), *(tuple(RANDOM.normal(size=d)) for d in (3, 4, 7))]


def block(levels, m, scale=False, dtype=torch.float64):
    """A block in the middle of a longer vector, as in a labelling."""
    w, g = torch.full((m + 7,), 99.0, dtype=dtype), torch.zeros(m + 7, dtype=dtype)
    scales = torch.linspace(0.3, 2.0, m, dtype=dtype) if scale else None
    return Block(LevelSet(levels), 3, w[3 : m + 3], g[3 : m + 3], scales)


def scales(of):
    return np.ones(of.m) if of.scale is None else of.scale.double().numpy()


def distributions(d, m, dtype=torch.float64, seed=0):
    """u (d, m) with decided and half-decided variables among the random ones."""
    generator = np.random.default_rng(seed)
    u = generator.dirichlet(np.ones(d), size=m)
    u[:d] = np.eye(d)
    u[d] = np.r_[0.5, 0.5, np.zeros(d - 2)]
    return torch.as_tensor(u.T.copy(), dtype=dtype)


def in_form(of, u):
    """u (d, m) as the block keeps it."""
    return u[1] - u[0] if of.is_pair else u


# --- weights


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("levels", PAIRS + MORE)
def test_written_weights_are_the_expected_levels(levels, scale):
    b = block(levels, 40, scale)
    assert (b.m, b.d, b.is_pair) == (40, len(levels), len(levels) == 2)
    u = distributions(b.d, b.m)
    b.write(in_form(b, u))
    expected = [
        s * sum(p * q for p, q in zip(column, sorted(levels), strict=True))
        for column, s in zip(u.T, scales(b), strict=True)
    ]
    assert b.w.numpy() == pytest.approx(np.array(expected), abs=1e-12)
    assert b.unscaled_weights().numpy() == pytest.approx(np.array(expected) / scales(b), abs=1e-12)


@pytest.mark.parametrize("levels", [(-1, 1), (0, 1), (-1, 0, 1)])
def test_writing_leaves_the_rest_of_the_vector_alone(levels):
    b = block(levels, 20)
    b.write(in_form(b, distributions(b.d, b.m)))
    whole = torch.empty(0, dtype=b.w.dtype).set_(b.w.untyped_storage())
    assert (whole[:3] == 99).all()
    assert (whole[23:] == 99).all()
    assert (whole[3:23] != 99).all()


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("levels", PAIRS)
def test_a_pair_is_read_off_the_weights_it_was_written_to(levels, scale):
    b = block(levels, 40, scale)
    t = torch.linspace(-1, 1, 40, dtype=torch.float64)
    b.write(t)
    assert b.mean_of_weights().numpy() == pytest.approx(t.numpy(), abs=1e-12)


def test_a_pair_may_be_written_from_the_weights_own_memory():
    for levels in PAIRS:
        b, t = block(levels, 40), torch.linspace(-1, 1, 40, dtype=torch.float64)
        b.w.copy_(t)
        b.write(b.w)
        middle, half_gap = sum(levels) / 2, abs(levels[1] - levels[0]) / 2
        assert b.w.numpy() == pytest.approx((middle + half_gap * t).numpy(), abs=1e-12)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("levels", [(-0.09, 1.46), (1.65, 1.87), (-1.68, -0.72)])
def test_a_decided_pair_read_off_single_precision_weights_has_no_entropy(levels, scale):
    b = block(levels, 40, scale, torch.float32)
    for t in (-1.0, 1.0):
        b.write(torch.full((40,), t))
        assert (b.entropy(b.mean_of_weights()).abs() < 1e-4).all()


def test_sparsemax_stops_the_gradient_of_decided_pairs_read_off_single_precision_weights():
    leaking = []
    for levels in RANDOM.normal(size=(50, 2)).round(2):
        b, aux = block(levels, 2, dtype=torch.float32), torch.tensor([-3.0, 3.0])
        b.write(Sparsemax().pair(aux, 1.0))
        if Sparsemax().pair_vjp(b.mean_of_weights(), torch.ones(2), 1.0, aux).any():
            leaking.append(tuple(levels))
    assert leaking == []


# --- labels


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", PAIRS + MORE)
def test_written_labels_are_exactly_levels_times_scale(levels, dtype, scale):
    b = block(levels, 40, scale, dtype)
    labels = torch.arange(40, dtype=torch.int32) % b.d
    b.write_labels(labels)
    q = torch.tensor(sorted(levels), dtype=dtype)
    expected = torch.stack([q[label] if b.scale is None else q[label] * b.scale[j] for j, label in enumerate(labels)])
    assert torch.equal(b.w, expected)


def test_the_likeliest_label_is_the_first_of_the_largest():
    for levels in MORE:
        b = block(levels, 60)
        u = torch.as_tensor(
            np.random.default_rng(1).integers(-2, 3, size=(b.d, 60)) / 4
        )  # auxiliary ones too, with ties
        truth = [next(i for i in range(b.d) if u[i, j] == max(u[:, j])) for j in range(60)]
        assert b.likeliest(u).tolist() == truth
        assert b.likeliest(u).dtype == torch.int32
    labels = block((-1, 1), 5).likeliest(torch.tensor([-1.0, -0.1, 0.0, 1e-30, 1.0]))
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert labels.dtype == torch.int32


@pytest.mark.parametrize("levels", [*PAIRS, *MORE, (-1, -0.25, 0.5, 0.75)])
def test_the_nearest_label_is_the_lower_of_the_closest_levels(levels):
    q = np.sort(np.array(levels, dtype=np.float64))
    values = np.concatenate([np.random.default_rng(2).normal(scale=3, size=200), q, [-1e3, 1e3]])
    if (q * 8 == (q * 8).round()).all():  # ties that arithmetic keeps exact
        values = np.concatenate([values, (q[1:] + q[:-1]) / 2])
    truth = np.abs(values[:, None] - q).argmin(1)  # the first of the smallest
    nearest = block(levels, 1).nearest(torch.as_tensor(values))
    assert nearest.tolist() == truth.tolist()
    assert nearest.dtype == torch.int32


# --- statistics


@pytest.mark.parametrize("levels", [(-1, 1), (0, 1), (-1, 0, 1), (-2, -1, 1, 2)])
def test_samples_are_as_frequent_as_u_says(levels):
    b, m = block(levels, 60_000, dtype=torch.float32), 60_000
    u = torch.tensor([0.45, 0.05, 0.3, 0.2][: b.d])
    u = u / u.sum()
    drawn = b.sample(in_form(b, u[:, None].expand(-1, m)), torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.int32
    counts = np.bincount(drawn.numpy(), minlength=b.d)
    assert scipy.stats.chisquare(counts, m * u.double().numpy() / u.double().sum().item()).pvalue > 1e-3


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1), (-2, -1, 1, 2)])
def test_decided_variables_are_sampled_at_their_label(levels):
    b = block(levels, 999)
    labels = torch.arange(999) % b.d
    u = torch.nn.functional.one_hot(labels, b.d).T.double()
    assert b.sample(in_form(b, u), torch.Generator().manual_seed(0)).tolist() == labels.tolist()


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1)])
def test_each_variable_is_sampled_on_its_own_and_by_the_generator(levels):
    b = block(levels, 1000)
    u = in_form(b, torch.full((b.d, 1000), 1 / b.d, dtype=torch.float64))
    first, again, other = (b.sample(u, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.unique()) == b.d


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1), (-2, -1, 1, 2)])
def test_entropy_is_scipys_in_bits(levels):
    b = block(levels, 50)
    u = distributions(b.d, 50)
    assert b.probabilities(in_form(b, u)).numpy() == pytest.approx(u.numpy(), abs=1e-15)
    assert b.entropy(in_form(b, u)).numpy() == pytest.approx(scipy.stats.entropy(u.numpy(), base=2), abs=1e-12)
    undecided = b.entropy(in_form(b, torch.full((b.d, 1), 1 / b.d, dtype=torch.float64)))
    assert undecided.item() == pytest.approx(np.log2(b.d))


def test_a_variable_is_decided_once_one_label_reaches_the_threshold():
    u = torch.tensor([[0.98, 0.01, 0.5, 0.0], [0.02, 0.99, 0.5, 1.0]], dtype=torch.float64)
    pair = block((-1, 1), 4)
    assert pair.decided(in_form(pair, u), 0.9899).tolist() == [False, True, False, True]
    assert pair.decided(in_form(pair, u), 0.97).tolist() == [True, True, False, True]
    planes = block((-1, 0, 1), 4)
    assert planes.decided(torch.cat([u, torch.zeros(1, 4)])).tolist() == [False, True, False, True]


# --- properties on inputs that hypothesis looks for

thorough = settings(max_examples=80, deadline=None, derandomize=True)
level_sets = st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=6, unique=True)


@st.composite
def blocks_with_aux(draw):
    """A single-precision block, with or without scales, and auxiliary variables for it."""
    b = block(draw(level_sets), draw(st.integers(1, 6)), draw(st.booleans()), torch.float32)
    numbers = draw(st.lists(st.floats(-8, 8, width=32), min_size=b.d * b.m, max_size=b.d * b.m))
    aux = torch.tensor(numbers).view(b.d, b.m)
    return b, aux[0] if b.is_pair else aux


@thorough
@given(problem=blocks_with_aux())
def test_rounding_gives_only_levels(problem):
    b, aux = problem
    value = aux if b.is_pair else aux[0]
    for labels in (b.likeliest(aux), b.nearest(value)):
        b.write_labels(labels)
        for j in range(b.m):
            scale = np.float32(1) if b.scale is None else b.scale[j].numpy()
            assert b.w[j].numpy() in [np.float32(q) * scale for q in b.levels.values]


@pytest.mark.parametrize("projection", [Softmax(), Sparsemax()])
@thorough
@given(problem=blocks_with_aux(), beta=st.floats(1e-3, 1e4))
def test_expected_weights_stay_within_the_levels(projection, problem, beta):
    b, aux = problem
    b.write(projection.pair(aux, beta) if b.is_pair else projection.planes(aux, beta))
    low, high = b.levels.values[0], b.levels.values[-1]
    tolerance = 1e-6 * max(1, abs(low), abs(high))
    w = b.unscaled_weights()
    assert (w >= low - tolerance).all()
    assert (w <= high + tolerance).all()
