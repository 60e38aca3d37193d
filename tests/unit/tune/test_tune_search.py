"""Searching: the same after a restart, better than chance; halving: never the best, mostly the bad."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Between, Choice, SweepSpec
from shoal.tune.memo import trial_key
from shoal.tune.prune import Rungs, bracket_of, is_lost
from shoal.tune.search import Searcher, Tried

JOB = JobSpec(name="t", entry=["train.py"], source_id="s1")
SPACE = {
    "lr": Between(low=1e-5, high=1.0, log=True),
    "layers": Between(low=1, high=8, whole=True),
    "kind": Choice(values=["a", ["b", 1]], group="g"),
    "size": Choice(values=[10, 20], group="g"),
}


def spec(**given):
    return SweepSpec(**{"name": "s", "job": JOB, "space": SPACE, "search": "tpe", "trials": 60, **given})


def loss(params):
    import math

    return (math.log10(params["lr"]) + 2) ** 2 + abs(params["layers"] - 5) + (params["size"] == 10)


def search(searcher, numbers, results):
    for number in numbers:
        params = searcher.ask(number)
        results[number] = Tried(number, params, loss(params))
        searcher.tell(results[number])


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_values_lie_in_the_space_and_groups_stay_together(kind):
    pytest.importorskip("optuna")
    results = {}
    search(Searcher(spec(search=kind)), range(30), results)
    for tried in results.values():
        assert 1e-5 <= tried.params["lr"] <= 1.0
        assert tried.params["layers"] in range(1, 9)
        assert (tried.params["kind"], tried.params["size"]) in (("a", 10), (["b", 1], 20))


def test_tpe_beats_chance():
    pytest.importorskip("optuna")
    by_kind = {}
    for kind in ("random", "tpe"):
        bests = []
        for seed in range(3):
            results = {}
            search(Searcher(spec(search=kind, seed=seed)), range(60), results)
            bests.append(min(t.result for t in results.values()))
        by_kind[kind] = sum(bests)
    assert by_kind["tpe"] < by_kind["random"]


def test_a_search_goes_on_after_a_restart_as_if_there_had_been_none():
    pytest.importorskip("optuna")
    whole, first = {}, {}
    search(Searcher(spec()), range(40), whole)
    search(Searcher(spec()), range(25), first)
    again = Searcher(spec())
    for number in range(25):
        again.tell(first[number])
    search(again, range(25, 40), first)
    assert [t.params for t in first.values()] == [t.params for t in whole.values()]


def test_failed_trials_are_no_results():
    pytest.importorskip("optuna")
    searcher = Searcher(spec())
    for number in range(15):
        searcher.tell(Tried(number, searcher.ask(number), None if number % 2 else float("nan")))
    assert searcher.ask(15) is not None
    assert searcher.ask(60) is None


def test_a_grid_ends_and_may_be_cut_short():
    space = {"a": Choice(values=[1, 2, 3])}
    assert Searcher(spec(search="grid", space=space, trials=None)).count == 3
    short = Searcher(spec(search="grid", space=space, trials=2))
    assert [short.ask(n) for n in range(3)] == [{"a": 1}, {"a": 2}, None]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"search": "grid"}, "give lr, layers as a list"),
        ({"trials": None}, "say how many trials"),
        ({"space": {"a": Choice(values=[1], group="g"), "b": Choice(values=[1, 2], group="g")}}, "hand in hand"),
    ],
)
def test_a_sweep_that_cannot_work_is_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        spec(**given)


@settings(max_examples=60)
@given(st.integers(2, 30), st.integers(2, 4), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from(["min", "max"]))
def test_halving_keeps_the_best_and_ends_about_all_but_one_in_factor(count, factor, brackets, seed, direction):
    drawn = random.Random(seed)
    reports = {n: [drawn.random() + 1 / (k + 1) for k in range(9)] for n in range(count)}
    if direction == "max":
        reports = {n: [-v for v in values] for n, values in reports.items()}
    lost = {n for n in reports if is_lost(n, reports, Rungs(1, factor), direction, brackets)}
    for bracket in range(brackets):
        members = [n for n in reports if bracket_of(n, brackets) == bracket]
        rung = factor**bracket
        if not members or rung > 9:
            assert not lost & set(members)
            continue
        sign = 1 if direction == "min" else -1
        best = min(members, key=lambda n: min(sign * v for v in reports[n][:rung]))
        through = [
            n
            for n in members
            if not is_lost(n, {m: r[:rung] for m, r in reports.items()}, Rungs(1, factor), direction, brackets)
        ]
        assert best in through
        assert len(through) == max(1, len(members) // factor)


def test_a_trial_without_a_rival_goes_on():
    assert not is_lost(0, {0: [9.0]}, Rungs(1, 3), "min")
    assert not is_lost(1, {0: [1.0], 1: []}, Rungs(1, 3), "min")


def test_what_is_not_a_number_loses():
    reports = {n: [float(n)] for n in range(5)} | {5: [float("nan")]}
    assert is_lost(5, reports, Rungs(1, 2), "min")


def test_the_same_trial_has_the_same_key_and_another_has_not():
    key = trial_key(JOB, {"a": 1, "b": 2}, {"d": "m1"})
    assert key == trial_key(JOB.model_copy(update={"name": "other", "priority": 5}), {"b": 2, "a": 1}, {"d": "m1"})
    for other in (
        trial_key(JOB, {"a": 1, "b": 3}, {"d": "m1"}),
        trial_key(JOB, {"a": 1, "b": 2}, {"d": "m2"}),
        trial_key(JOB.model_copy(update={"accels": 2}), {"a": 1, "b": 2}, {"d": "m1"}),
        trial_key(JOB.model_copy(update={"source_id": "s2"}), {"a": 1, "b": 2}, {"d": "m1"}),
    ):
        assert other != key
