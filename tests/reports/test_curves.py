"""Curves of a group: mean and range at every iteration, over the runs that were there."""

import numpy as np
import pytest

from mrfquant.reports.curves import DARK, LIGHT, POINTS, curve, style
from mrfquant.reports.runs import read_run


@pytest.fixture
def curve_of(make_run, told):
    """The curve of the losses of some runs, each a dict {iteration: loss}."""

    def curve_of(*losses):
        records = [[{"iteration": i, "loss": v} for i, v in loss.items()] for loss in losses]
        runs = [read_run(make_run(f"{i}", records=r, seed=i), told.append) for i, r in enumerate(records)]
        return curve(runs, "loss")

    return curve_of


def test_mean_and_range_over_seeds(curve_of):
    found = curve_of({10: 1.0, 20: 4.0}, {10: 3.0, 20: 0.0}, {10: 2.0, 20: 5.0})
    assert found.iterations.tolist() == [10, 20]
    assert found.mean.tolist() == [2, 3]
    assert found.low.tolist() == [1, 0]
    assert found.high.tolist() == [3, 5]


def test_an_unfinished_run_counts_as_far_as_it_came(curve_of):
    found = curve_of({10: 1.0, 20: 1.0, 30: 1.0}, {10: 3.0, 20: 3.0})
    assert found.mean.tolist() == [2, 2, 1]


def test_runs_recorded_at_different_iterations_are_interpolated(curve_of):
    found = curve_of({10: 1.0, 30: 3.0}, {10: 1.0, 20: 4.0, 30: 3.0})
    assert found.mean.tolist() == [1, 3, 3]


def test_a_metric_that_no_run_recorded_has_no_curve(curve_of):
    assert curve_of({}) is None


def test_long_runs_are_thinned_and_keep_their_ends(curve_of):
    found = curve_of({i: float(i) for i in range(5000)})
    assert len(found.iterations) == POINTS
    assert (found.iterations[0], found.iterations[-1]) == (0, 4999)
    assert np.array_equal(found.mean, found.iterations)


def test_groups_beyond_the_colours_differ_in_their_dash():
    assert len({style(number) for number in range(4 * len(LIGHT))}) == 4 * len(LIGHT)
    assert len(LIGHT) == len(DARK)
