"""Smoothing: what a chart draws equals the same smoothing of every point, however many points there are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.server.metrics.smooth import UNITS, bucket_ends, buckets, smoothed
from shoal.server.metrics.stitch import bucket_size, thin

VALUES = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


def of_all_points(steps, values, weight):
    """The definition, point by point."""
    unit = (steps[-1] - steps[0]) / min(len(steps) - 1, UNITS) if len(steps) > 1 else 1
    found, total, norm, before = [], 0.0, 0.0, steps[0]
    for step, value in zip(steps, values, strict=True):
        decay = weight ** ((step - before) / unit)
        total, norm, before = total * decay, norm * decay, step
        if math.isfinite(value):
            total, norm = total + value, norm + 1
        found.append(total / norm if norm else None)
    return found


def skewed(total):
    """A loss whose values lie near 1 with rare, high peaks: its mean is far from the middle of its range."""
    rng = np.random.default_rng(7)
    return 1 + rng.exponential(0.8, total)


@pytest.mark.parametrize("weight", [0.01, 0.3, 0.6, 0.9, 0.99])
def test_a_long_run_is_drawn_as_smoothing_all_its_points_gives(weight):
    steps, values = np.arange(200_000), skewed(200_000)
    size = bucket_size(len(values), 800)
    drawn = smoothed(steps, values, weight, size)
    expected = np.array(of_all_points(steps.tolist(), values.tolist(), weight))[bucket_ends(len(values), size)]
    assert len(drawn) <= 400
    assert np.allclose(drawn, expected, rtol=1e-2)
    quarter = np.mean(drawn[-len(drawn) // 4 :])
    # At the lowest smoothing a drawn value is the mean of few points, and so is less exact as a mean.
    assert quarter == pytest.approx(values[-len(values) // 4 :].mean(), rel=0.01 if weight >= 0.3 else 0.02)


def test_averaging_the_lowest_and_highest_points_would_be_far_off():
    """The reason why smoothing comes before thinning."""
    values = skewed(200_000)
    assert values[thin(values, 800)].mean() > 1.5 * values.mean()


ROWS = st.lists(st.tuples(st.integers(1, 50), VALUES), min_size=1, max_size=120)


@given(ROWS, st.floats(0.01, 0.99), st.integers(4, 60), st.booleans())
def test_smoothing_of_any_points_equals_that_of_all_at_each_buckets_end(rows, weight, count, is_even):
    rows = [(7, value) for _, value in rows] if is_even else rows
    steps = np.cumsum([gap for gap, _ in rows])
    values = np.array([value for _, value in rows])
    size = bucket_size(len(values), count)
    ends = bucket_ends(len(values), size)
    drawn = smoothed(steps, values, weight, size)
    expected = of_all_points(steps.tolist(), values.tolist(), weight)
    scale = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    starts = [0, *(ends[:-1] + 1).tolist()]
    assert ends[-1] == len(values) - 1
    for value, start, end in zip(drawn, starts, ends.tolist(), strict=True):
        if np.isfinite(values[start : end + 1]).any():
            assert value == pytest.approx(expected[end], rel=1e-2, abs=1e-6 * scale + 1e-12)
        else:
            assert value is None


@given(st.lists(VALUES, min_size=1, max_size=200), st.integers(4, 60))
def test_buckets_hold_every_points_share(values, count):
    array = np.array(values)
    size = bucket_size(len(array), count)
    found = buckets(np.arange(len(array)), array, size)
    finite = array[np.isfinite(array)]
    assert sum(row[2] for row in found) == len(finite)
    for row in found:
        part = array[row[0] : row[1] + 1]
        inside = part[np.isfinite(part)]
        assert row[2] == len(inside)
        if len(inside):
            assert (row[3], row[5]) == (inside.min(), inside.max())
            assert row[4] == pytest.approx(inside.mean(), rel=1e-6, abs=1e-3)
        else:
            assert row[3:6] == [None, None, None]


def test_few_points_are_smoothed_one_by_one_as_ever():
    assert smoothed(np.array([10, 20, 30]), np.array([1.0, 2.0, 4.0]), 0.5, 1) == [
        1.0,
        pytest.approx((0.5 * 1 + 2) / 1.5),
        pytest.approx((0.25 * 1 + 0.5 * 2 + 4) / 1.75),
    ]


def test_a_stretch_without_a_number_is_a_gap_and_no_more():
    values = np.array([1.0, 1.0, math.nan, math.nan, 3.0, 3.0])
    first, gap, last = smoothed(np.arange(6), values, 0.5, 2)
    assert (first, gap) == (1.0, None) and 2.5 < last < 3.0
