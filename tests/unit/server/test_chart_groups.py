"""Mean of a group of runs: the same curve at every zoom and resolution, smoothed run by run before anything is cut."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_smooth import of_all_points

from shoal.server.metrics.groups import Line, mean_of

VALUES = st.one_of(st.floats(-1e3, 1e3), st.floats(1, 2), st.just(math.nan))
RUN = st.lists(st.tuples(st.integers(1, 60), VALUES), min_size=1, max_size=60)


def line(rows, start=0):
    steps = start + np.cumsum([gap for gap, _ in rows])
    return Line(steps.astype(float), steps, np.array([value for _, value in rows], float), None)


def curve(line, values):
    """The points of a line that have a number, with other values for them."""
    has = np.isfinite(line.values)
    return line.x[has], np.array([v for v, is_number in zip(values, has, strict=True) if is_number], float)


def mean_at(curves, x):
    """The mean of the curves at x, each between its own points; a curve that does not reach x does not count."""
    here = [np.interp(x, at, values) for at, values in curves if len(at) and at[0] <= x <= at[-1]]
    return np.mean(here) if here else math.nan


@given(
    st.lists(st.tuples(RUN, st.integers(0, 200)), min_size=1, max_size=4),
    st.integers(4, 400),
    st.floats(0.01, 0.99),
    st.tuples(st.floats(-50, 3500), st.floats(-50, 3500)),
)
@example([([(1, 0.0)], 0), ([(2, 0.0), (1, 0.0), (1, 0.0), (1, 0.0)], 0)], 4, 0.5, (0.0, 5.0))
def test_the_smoothed_mean_is_the_mean_of_the_smoothed_runs_at_any_zoom(runs, points, weight, span):
    lines = [line(rows, start) for rows, start in runs]
    span = tuple(sorted(span))
    found = mean_of(lines, points=points, span=span, smoothing=weight)
    whole = [curve(one, one.values) for one in lines]
    inside = sorted({x for at, _ in whole for x in at if span[0] <= x <= span[1]})
    if not inside:
        assert found is None
        return
    smooth = [curve(one, of_all_points(one.steps.tolist(), one.values.tolist(), weight)) for one in lines]
    size = max((abs(v) for _, values in whole for v in values), default=1.0)
    for x, drawn, spread in zip(found["x"], found["smooth"], found["runs"], strict=True):
        drawn = math.nan if drawn is None else drawn  # a gap between runs
        assert drawn == pytest.approx(mean_at(smooth, x), rel=1e-6, abs=1e-6 * size, nan_ok=True)
        assert spread == sum(at[0] <= x <= at[-1] for at, _ in whole if len(at))
    if len(inside) <= points:  # every point is drawn: the mean, too, is that of the whole
        assert found["x"] == inside
        assert found["mean"] == pytest.approx([mean_at(whole, x) for x in inside], rel=1e-6, abs=1e-6 * size)


def test_a_group_of_one_is_drawn_like_the_run():
    steps = np.arange(0, 3000, 3)
    one = Line(steps.astype(float), steps, np.sin(steps / 100), None)
    found = mean_of([one], points=2000, smoothing=0.9)
    assert found["mean"] == pytest.approx(one.values, rel=1e-8, abs=1e-12)
    assert found["smooth"] == pytest.approx(of_all_points(steps.tolist(), one.values.tolist(), 0.9), rel=1e-6)


def test_a_long_group_keeps_its_curve_when_one_zooms_in():
    rng = np.random.default_rng(3)
    steps = np.arange(100_000)
    lines = [Line(steps.astype(float), steps, 2 + rng.exponential(0.5, len(steps)), None) for _ in range(3)]
    far = mean_of(lines, points=400, smoothing=0.8)
    near = mean_of(lines, points=400, smoothing=0.8, span=(40_000, 60_000))
    at = dict(zip(near["x"], near["smooth"], strict=True))
    for x, value in zip(far["x"], far["smooth"], strict=True):
        if 40_000 < x < 60_000:
            closest = min(at, key=lambda other: abs(other - x))
            assert at[closest] == pytest.approx(value, rel=0.02)
    assert near["last"] == far["last"] == pytest.approx(np.mean([one.values[-1] for one in lines]))


def test_a_line_that_goes_back_over_its_axis_is_not_smoothed():
    back = Line(np.array([0.0, 1.0, 2.0]), np.array([5, 3, 4]), np.array([1.0, 2.0, 3.0]), None)
    assert "smooth" not in mean_of([back], smoothing=0.5)
