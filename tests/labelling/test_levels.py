"""A level set is at least two finite, different values in increasing order."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadSetting
from mrfquant.labelling import LevelSet, uniform


@pytest.mark.parametrize(
    "values",
    [[], [1], [1, 2, 1], [1, 1.0], [0.0, -0.0], [0, math.inf], [-math.inf, 0, 1], [0, math.nan]],
)
def test_unusable_levels_are_refused(values):
    with pytest.raises(BadSetting, match="expected two or more different finite numbers") as error:
        LevelSet(values)
    assert error.value.binding == "Labelling.levels"


def test_levels_are_sorted_floats_and_equal_sets_are_one_key():
    levels = LevelSet([2, -1, 0])
    assert levels.values == (-1.0, 0.0, 2.0)
    assert all(type(v) is float for v in levels.values)
    assert len({levels, LevelSet((0, 2, -1)), LevelSet([-1, 0])}) == 2


@pytest.mark.parametrize(("d", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4), (17, 5), (256, 8)])
def test_bits_are_the_fewest_that_tell_the_labels_apart(d, bits):
    assert len(LevelSet(range(d))) == d
    assert LevelSet(range(d)).bits == bits
    assert 2 ** (bits - 1) < d <= 2**bits


def test_middle_and_half_gap_span_the_extremes_and_midpoints_lie_between_neighbours():
    levels = LevelSet([6, -2, 0, 1])
    assert (levels.middle, levels.half_gap) == (2.0, 4.0)
    assert levels.midpoints == (-1.0, 0.5, 3.5)


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8, unique=True))
def test_midpoints_separate_neighbouring_levels(values):
    levels = LevelSet(values)
    assert list(levels.values) == sorted(values)
    gaps = [b - a for a, b in zip(levels.values, levels.values[1:], strict=False)]
    assume(min(gaps) > 1e-6)
    assert len(levels.midpoints) == len(levels) - 1
    for low, middle, high in zip(levels.values, levels.midpoints, levels.values[1:], strict=False):
        assert low < middle < high
        assert middle - low == pytest.approx(high - middle, rel=1e-3)


@pytest.mark.parametrize(
    ("bits", "limit", "values"),
    [
        (1, 1.0, [-1, 1]),
        (2, 1.0, [-1, -1 / 3, 1 / 3, 1]),
        (2, 6.0, [-6, -2, 2, 6]),
        (3, 7.0, [-7, -5, -3, -1, 1, 3, 5, 7]),
    ],
)
def test_uniform_levels_are_evenly_spaced_up_to_the_limit(bits, limit, values):
    levels = uniform(bits=bits, limit=limit)
    assert levels.values == pytest.approx(values, abs=1e-15)
    assert levels.bits == bits
    assert (levels.values[0], levels.values[-1]) == (-limit, limit)


@pytest.mark.parametrize(
    ("bits", "limit"), [(0, 1.0), (9, 1.0), (-1, 1.0), (1.5, 1.0), (1, 0.0), (1, -1.0), (1, math.inf)]
)
def test_uniform_refuses_impossible_settings(bits, limit):
    with pytest.raises(BadSetting, match=r"uniform\.(bits|limit)"):
        uniform(bits=bits, limit=limit)
