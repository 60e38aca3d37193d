"""Importance of parameters."""

import random

import pytest

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Between, Choice, SweepSpec
from shoal.tune.importance import LEAST, shares

SPACE = {
    "lr": Between(low=1e-5, high=1.0, log=True),
    "noise": Between(low=0.0, high=1.0),
    "kind": Choice(values=["a", ["b", 1]], group="g"),
    "size": Choice(values=[10, 20], group="g"),
}


def spec(**given):
    job = JobSpec(name="t", entry=["train.py"], source_id="s1")
    return SweepSpec(**{"name": "s", "job": job, "space": SPACE, "search": "random", "trials": 100, **given})


def results(count, loss):
    drawn = random.Random(7)
    made = []
    for _ in range(count):
        row = drawn.randrange(2)
        params = {"lr": 10 ** drawn.uniform(-5, 0), "noise": drawn.random(), "kind": SPACE["kind"].values[row]}
        params["size"] = SPACE["size"].values[row]
        made.append((params, loss(params)))
    return made


@pytest.mark.parametrize(("direction", "sign"), [("min", 1), ("max", -1)])
def test_what_makes_the_difference_has_the_largest_share(direction, sign):
    pytest.importorskip("optuna")
    found = shares(spec(direction=direction), results(60, lambda p: sign * abs(p["lr"] - 0.001)))
    assert set(found) == {"lr", "noise", "kind, size"}
    assert sum(found.values()) == pytest.approx(1)
    assert next(iter(found)) == "lr" and found["lr"] > 0.6


def test_nothing_is_said_while_too_little_is_known():
    assert shares(spec(), results(LEAST - 1, lambda p: p["lr"])) == {}
    assert shares(spec(), results(30, lambda p: 1.0)) == {}
    assert shares(spec(), results(30, lambda p: float("nan"))) == {}
