"""Lines of many runs in one chart: what is drawn is what was logged, also over another axis, of expressions and of groups."""

import json
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_smooth import of_all_points
from web_run import Run

from shoal.core.errors import InvalidSpec, NotFound
from shoal.server.metrics import many


def query(ctx, person, jobs, *names, **options):
    return json.loads(many.query(ctx, person.access(), jobs, many.Wanted(names=list(names), **options)))


def lines(ctx, person, jobs, *names, **options):
    return query(ctx, person, jobs, *names, **options)["lines"]


def log(run, rows, kind="s"):
    run.send("metric", *({"k": kind, "i": step, "t": 1000.0 + step / 2, "v": values} for step, values in rows))
    return run


@pytest.fixture
def seeds(ctx, anna):
    """Three runs of 300 steps, each logged at the same steps."""
    rng = random.Random(5)
    values = {f"seed-{n}": [rng.gauss(2, 1) for _ in range(300)] for n in range(3)}
    for name, numbers in values.items():
        log(Run(ctx, anna, name), ((i, {"loss": v, "tokens": i * 512.0}) for i, v in enumerate(numbers)))
    return values


def test_a_line_with_few_points_is_returned_as_logged_and_a_long_one_in_intervals_that_hold_all(ctx, anna, seeds):
    points = seeds["seed-0"]

    @settings(max_examples=25, deadline=None)
    @given(st.integers(4, 400), st.floats(-20, 320), st.floats(-20, 320))
    def check(count, a, b):
        low, high = sorted((a, b))
        steps = [i for i in range(300) if low <= i <= high]
        found = lines(ctx, anna, ["seed-0"], "loss", points=count, span=(low, high), smoothing=0.8)
        if not steps:
            assert found == []
            return
        (line,) = found
        assert line["count"] == len(steps) and len(line["x"]) <= max(count, 4)
        if len(steps) <= count:
            assert (line["x"], line["mean"]) == (steps, [points[i] for i in steps]) and "low" not in line
        else:
            size = line["size"]
            parts = [steps[i : i + size] for i in range(0, len(steps), size)]
            assert line["x"] == [part[-1] for part in parts]
            assert line["low"] == [min(points[i] for i in part) for part in parts]
            assert line["high"] == [max(points[i] for i in part) for part in parts]
            assert line["mean"] == pytest.approx(
                [statistics.fmean(points[i] for i in part) for part in parts], rel=1e-8
            )
        whole = of_all_points(range(300), np.array(points), 0.8)
        assert line["smooth"] == pytest.approx([whole[int(x)] for x in line["x"]], rel=0.01)

    check()


def test_the_axis_can_be_time_run_time_or_another_metric(ctx, anna, seeds):
    def ends(x):
        (line,) = lines(ctx, anna, ["seed-1"], "loss", x=x, times=True)
        return line["x"][0], line["x"][-1], line["at"][-1]

    assert ends("step") == (0, 299, 1149.5)
    assert ends("time") == (1000.0, 1149.5, 1149.5)
    assert ends("relative") == (0.0, 149.5, 1149.5)
    assert ends("tokens") == (0, 299 * 512, 1149.5)


def test_an_axis_that_goes_back_is_sorted(ctx, anna):
    run = log(Run(ctx, anna), ((i, {"loss": float(i), "lr": math.sin(i)}) for i in range(20)))
    (line,) = lines(ctx, anna, [run.id], "loss", x="lr", smoothing=0.5)
    assert line["x"] == sorted(math.sin(i) for i in range(20)) and sorted(line["mean"]) == [float(i) for i in range(20)]
    assert "smooth" not in line


def test_an_expression_has_the_steps_of_its_rarest_metric_and_the_newest_value_of_the_others(ctx, anna):
    run = log(Run(ctx, anna), ((i, {"loss": float(i)}) for i in range(0, 100, 10)))
    log(run, ((i, {"eval/loss": i + 0.5}) for i in (15, 45, 95)), "e")
    (line,) = lines(ctx, anna, [run.id], "eval/loss - loss")
    assert (line["x"], line["mean"]) == ([15, 45, 95], [5.5, 5.5, 5.5]) and line["name"] == "eval/loss - loss"
    (line,) = lines(ctx, anna, [run.id], "log(loss - 10)")  # no number at first: gaps, not zeros
    assert line["mean"][:2] == [None, None] and line["mean"][2] == pytest.approx(math.log(10))


def test_a_group_is_the_mean_of_its_runs_with_their_spread(ctx, anna, seeds):
    (line,) = lines(ctx, anna, [",".join(seeds)], "loss", points=300)
    each = list(zip(*seeds.values(), strict=True))
    assert line["mean"] == pytest.approx([statistics.fmean(v) for v in each], rel=1e-8)
    assert line["std"] == pytest.approx([statistics.stdev(v) for v in each], rel=1e-8)
    assert line["low"] == pytest.approx([min(v) for v in each]) and line["runs"] == [3] * 300
    (thin,) = lines(ctx, anna, [",".join(seeds)], "loss", points=30)
    part = [v for row in each[:10] for v in row]
    assert len(thin["x"]) == 30 and thin["mean"][0] == pytest.approx(statistics.fmean(part), rel=1e-6)
    assert thin["count"] == 900


def test_the_smoothed_mean_of_a_group_is_the_same_curve_at_every_zoom(ctx, anna, seeds):
    each = [of_all_points(range(300), np.array(values), 0.8) for values in seeds.values()]
    for span, points in (((None, None), 400), ((None, None), 30), ((120.0, 180.0), 400), ((100.0, 290.0), 20)):
        (line,) = lines(ctx, anna, [",".join(seeds)], "loss", points=points, span=span, smoothing=0.8)
        expected = [statistics.fmean(np.interp(x, range(300), curve) for curve in each) for x in line["x"]]
        assert line["smooth"] == pytest.approx(expected, rel=1e-6)


def test_runs_of_a_group_count_only_where_they_have_points(ctx, anna):
    short = log(Run(ctx, anna, "short"), ((i, {"loss": 1.0}) for i in range(5)))
    long = log(Run(ctx, anna, "long"), ((i, {"loss": 3.0}) for i in range(0, 11, 2)))
    (line,) = lines(ctx, anna, [f"{short.id},{long.id}"], "loss")
    assert dict(zip(line["x"], line["mean"], strict=True)) == {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 6: 3, 8: 3, 10: 3}
    assert line["runs"] == [2, 2, 2, 2, 2, 1, 1, 1] and line["std"][-1] is None


def test_points_that_a_later_attempt_replaced_are_lines_of_their_own(ctx, anna):
    run = log(Run(ctx, anna), ((i, {"loss": float(i)}) for i in range(10)))
    log(run.attempt(), ((i, {"loss": 100.0 + i}) for i in range(6, 12)))
    (line,) = lines(ctx, anna, [run.id], "loss")
    assert line["mean"] == [0, 1, 2, 3, 4, 5, 106, 107, 108, 109, 110, 111]
    ghost = next(one for one in lines(ctx, anna, [run.id], "loss", ghosts=True) if one.get("attempt"))
    assert (ghost["attempt"], ghost["x"], ghost["mean"]) == (1, [6, 7, 8, 9], [6, 7, 8, 9])


def test_runs_without_a_metric_are_left_out_and_other_peoples_runs_are_not_found(ctx, anna, berta, seeds):
    log(Run(ctx, anna, "other"), [(0, {"acc": 1.0})])
    log(Run(ctx, berta, "hers"), [(0, {"loss": 1.0})])
    assert [line["name"] for line in lines(ctx, anna, ["other", "seed-0"], "loss")] == ["loss"]
    assert query(ctx, anna, ["other"], "loss", "acc")["missing"] == ["loss"]
    with pytest.raises(NotFound):
        query(ctx, anna, ["hers"], "loss")
    with pytest.raises(InvalidSpec):
        query(ctx, anna, ["seed-0"], "loss", span=(2.0, 1.0))
    with pytest.raises(InvalidSpec):
        query(ctx, anna, ["seed-0"], "loss -")


def test_texts_and_numbers_that_are_not_finite_are_gaps(ctx, anna):
    run = Run(ctx, anna)
    values = [1.0, "nan", "inf", 2.0]
    run.send(
        "metric",
        *({"k": "e", "i": i, "v": {"verdict": "good" if i == 1 else 1.0, "loss": v}} for i, v in enumerate(values)),
    )
    found = {line["name"]: line["mean"] for line in lines(ctx, anna, [run.id], "loss", "verdict")}
    assert found == {"loss": [1.0, None, None, 2.0], "verdict": [1.0, None, 1.0, 1.0]}
