"""Zoom: a part of a chart is the same part of the whole, and the closest look shows what was logged, point by point."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_smooth import of_all_points
from web_run import Run

from shoal.core.errors import InvalidSpec
from shoal.server.metrics import reads

TOTAL = 1200


@pytest.fixture
def logged(ctx, anna):
    """A run of uneven steps and times, its second attempt resumed from an older checkpoint."""
    rng = random.Random(3)
    run, step, at = Run(ctx, anna), 0, 1000.0
    rows, first = [], None
    for n in range(TOTAL):
        resumed = len(rows) == first
        step, at = step + (1 if resumed else rng.randint(1, 9)), at + rng.random()
        rows.append((step, round(at, 3), rng.expovariate(1.0)))
        if n == TOTAL // 2:
            run.send("metric", *(_line(*row) for row in rows))
            run.attempt()
            rows = rows[:-50]
            step = rows[-1][0]
            first = len(rows)
    run.send("metric", *(_line(*row) for row in rows[first:]))
    run.send("metric", {"k": "e", "i": step, "t": at + 500, "v": {"late": 1.0}})
    return rows


def _line(step, at, value):
    return {"k": "s", "i": step, "t": at, "v": {"loss": value}}


def read(ctx, anna, **options):
    given = {"names": ["loss"], "points": None, "axis": "step", "after": 0, "ghosts": False} | options
    return json.loads(reads.read(ctx, anna.access(), "a-job", **given))


def test_any_part_at_any_resolution_is_a_part_of_what_was_logged(ctx, anna, logged):
    points = {step: value for step, _, value in logged}
    steps, values = np.array(list(points)), np.array(list(points.values()))
    curve = dict(zip(steps.tolist(), of_all_points(steps.tolist(), values.tolist(), 0.9), strict=True))
    span = st.tuples(st.floats(-10, steps[-1] + 10), st.floats(-10, steps[-1] + 10)).map(sorted)

    @settings(max_examples=40, deadline=None)
    @given(span, st.integers(4, 2000))
    def check(span, count):
        low, high = span
        found = read(ctx, anna, points=count, span=(low, high), smoothing=0.9, buckets=True)
        inside = [(s, points[s]) for s in steps.tolist() if low <= s <= high]
        drawn = [tuple(row) for row in found["metrics"]["loss"]]
        if count >= len(inside):
            assert drawn == inside, "few enough points are returned as logged"
        else:
            assert set(drawn) <= set(inside) and len(drawn) <= 1.2 * count + 4
            assert (min(v for _, v in drawn), max(v for _, v in drawn)) == (
                min(v for _, v in inside), max(v for _, v in inside)
            )  # fmt: skip
        for at, value in found["smoothed"].get("loss", []):
            assert low <= at <= high and value == pytest.approx(curve[at], rel=1e-2)
        assert sum(b[2] for b in found["buckets"].get("loss", [])) == len(inside)

    check()


@pytest.mark.parametrize("axis", ["time", "relative"])
def test_a_part_of_a_time_axis_is_cut_by_time(ctx, anna, logged, axis):
    origin = logged[0][1] if axis == "relative" else 0.0
    low, high = logged[300][1] - origin, logged[420][1] - origin
    drawn = read(ctx, anna, axis=axis, span=(low - 1e-4, high + 1e-4))["metrics"]["loss"]
    assert [v for _, v in drawn] == [v for _, _, v in logged[300:421]]
    assert [x for x, _ in drawn] == pytest.approx([t - origin for _, t, _ in logged[300:421]], abs=2e-3)


def test_run_time_begins_at_the_jobs_first_point_whichever_metric_is_read(ctx, anna, logged):
    late = read(ctx, anna, names=["late"], axis="relative")["metrics"]["late"]
    assert late[0][0] == pytest.approx(logged[-1][1] + 500 - logged[0][1], abs=0.01)


def test_replaced_points_are_cut_too(ctx, anna, logged):
    everything = read(ctx, anna, ghosts=True)["ghosts"]["loss"]
    low, high = everything[10][0], everything[20][0]
    assert read(ctx, anna, ghosts=True, span=(low, high))["ghosts"]["loss"] == everything[10:21]


def test_a_part_that_ends_before_it_begins_is_refused(ctx, anna, logged):
    with pytest.raises(InvalidSpec, match="from 5 to 4 is empty"):
        read(ctx, anna, span=(5.0, 4.0))
