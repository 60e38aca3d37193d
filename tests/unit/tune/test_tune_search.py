"""Searching: the same after a restart, better than chance; halving: never the best, mostly the bad."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Between, Choice, SweepSpec, TrialState
from shoal.tune.curve import Curve
from shoal.tune.memo import trial_key
from shoal.tune.prune import RungResults, Rungs, bracket_of
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


def is_lost(trial, reports, rungs, direction, brackets=1):
    board = RungResults(rungs, direction, brackets)
    for number, values in reports.items():
        board.add(number, Curve.of(values, direction))
    return board.loss(trial) is not None


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


def test_it_does_not_matter_in_which_order_trials_are_told():
    """Nor how often: what is asked next follows from how they stand, as it is in the database."""
    pytest.importorskip("optuna")
    drawn = random.Random(1)
    live = Searcher(spec(search="asha", parallel=4))
    known = {}
    for number in range(40):
        known[number] = Tried(number, live.ask(number), state=TrialState.RUNNING)
        live.tell(known[number])
        for other in drawn.sample(sorted(known), min(3, len(known))):
            values = [*known[other].values, loss(known[other].params) + drawn.random()]
            state = drawn.choice([TrialState.RUNNING, TrialState.PRUNED, TrialState.DONE])
            known[other] = Tried(other, known[other].params, values=values, state=state)
            live.tell(known[other])
    again = Searcher(spec(search="asha", parallel=4))
    for number in drawn.sample(sorted(known), len(known)):
        again.tell(known[number])
    assert again.ask(40) == live.ask(40)


@pytest.mark.parametrize("kind", ["tpe", "asha"])
def test_where_all_are_choices_each_is_tried_once_and_then_there_are_no_more(kind):
    pytest.importorskip("optuna")
    space = {"a": Choice(values=[1, 2, 3]), "b": Choice(values=["x", "y"]), "c": Choice(values=[0.1, 0.2, 0.3])}
    searcher = Searcher(spec(search=kind, space=space, trials=1000))
    assert searcher.count == 18
    seen = []
    for number in range(18):
        params = searcher.ask(number)
        seen.append(tuple(params.values()))
        searcher.tell(Tried(number, params, params["a"] + params["c"]))
    assert len(set(seen)) == 18
    assert searcher.ask(18) is None


def test_the_first_trials_are_spread_evenly():
    pytest.importorskip("optuna")
    searcher = Searcher(spec(space={"x": Between(low=0, high=10), "n": Choice(values=list(range(10)))}))
    asked = []
    for number in range(10):
        asked.append(searcher.ask(number))
        searcher.tell(Tried(number, asked[-1], state=TrialState.RUNNING))
    assert sorted(int(params["x"]) for params in asked) == list(range(10))
    assert sorted(params["n"] for params in asked) == list(range(10))


def test_what_failed_and_what_runs_is_not_asked_for_again_at_once():
    pytest.importorskip("optuna")
    space = {"x": Between(low=0, high=1)}
    for state in (TrialState.FAILED, TrialState.RUNNING):
        searcher = Searcher(spec(space=space, trials=100))
        for number in range(20):
            searcher.tell(Tried(number, {"x": number / 20}, abs(0.4 - number / 20)))
        for number in range(20, 40):  # the best there is, were it not for these
            searcher.tell(Tried(number, {"x": 0.4 + (number - 30) / 1000}, state=state))
        asked = searcher.ask(40)["x"]
        assert abs(asked - 0.4) > 0.011, state


def test_after_hundreds_of_trials_the_best_still_count_however_old():
    pytest.importorskip("optuna")
    searcher = Searcher(spec(space={"x": Between(low=0, high=1)}, trials=1000))
    drawn = random.Random(1)
    for number in range(700):
        x = 0.3 + number / 1000 if number < 25 else drawn.uniform(0.4, 1)
        searcher.tell(Tried(number, {"x": x}, x))
    assert 0.2 < searcher.ask(700)["x"] < 0.4


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
        ({"space": {"a": Choice(values=[1], group="g"), "b": Choice(values=[1, 2], group="g")}}, "varied together"),
    ],
)
def test_a_sweep_that_cannot_work_is_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        spec(**given)


@settings(max_examples=60)
@given(st.integers(2, 30), st.integers(2, 4), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from(["min", "max"]))
def test_of_trials_that_stay_as_good_as_they_begin_the_best_one_in_factor_goes_on(
    count, factor, brackets, seed, direction
):
    drawn, sign = random.Random(seed), 1 if direction == "min" else -1
    height = {n: drawn.random() for n in range(count)}
    reports = {n: [sign * (height[n] + 1 / (k + 1)) for k in range(64)] for n in height}
    left = {n for n in reports if not is_lost(n, reports, Rungs(1, factor), direction, brackets)}
    for bracket in range(brackets):
        members = [n for n in sorted(height, key=height.get) if bracket_of(n, brackets) == bracket]
        assert left & set(members) == set(members[: -(-len(members) // factor)])


def test_one_bad_beginning_is_forgiven_but_not_two():
    steady = {n: [1.0 + n] * 9 for n in range(6)}
    late = {6: [9.0, 9.0, 0.5]}
    assert not is_lost(6, steady | {6: [9.0]}, Rungs(1, 3), "min")
    assert not is_lost(6, steady | late, Rungs(1, 3), "min")
    assert is_lost(6, steady | {6: [9.0, 9.0, 9.0]}, Rungs(1, 3), "min")
    assert not is_lost(0, steady | late, Rungs(1, 3), "min")


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(["min", "max"]))
def test_told_bit_by_bit_the_board_knows_what_it_would_from_the_whole(seed, brackets, direction):
    drawn = random.Random(seed)
    reports = {n: [] for n in range(12)}
    board = RungResults(Rungs(1, 3), direction, brackets)
    for _ in range(80):
        trial = drawn.randrange(12)
        if drawn.random() < 0.05:
            board.forget(trial)
            reports[trial] = []
        reports[trial] = [*reports[trial], drawn.choice([drawn.random(), float("nan")])]
        board.add(trial, Curve.of(reports[trial], direction))
    for trial in reports:
        assert (board.loss(trial) is not None) == is_lost(trial, reports, Rungs(1, 3), direction, brackets)


def test_why_a_trial_is_lost_can_be_said():
    board = RungResults(Rungs(1, 3), "max")
    for trial, values in enumerate([[0.1, 0.3, 0.2], [0.9], [0.5], [0.7], [0.2, 0.2, 0.1]]):
        board.add(trial, Curve.of(values, "max"))
    assert board.loss(0) is None, "the best at the second rung"
    assert board.loss(2) is None, "it has come to one rung only"
    assert board.loss(4) == (3, 0.2, 0.3)


def test_a_trial_without_a_rival_goes_on():
    assert not is_lost(0, {0: [9.0]}, Rungs(1, 3), "min")
    assert not is_lost(1, {0: [1.0], 1: []}, Rungs(1, 3), "min")


def test_what_is_not_a_number_loses():
    reports = {n: [float(n)] * 2 for n in range(5)} | {5: [float("nan")] * 2}
    assert is_lost(5, reports, Rungs(1, 2), "min")


def test_the_same_trial_has_the_same_key_and_another_has_not():
    key = trial_key(JOB, {"a": 1, "b": 2}, {"d": "m1"})
    assert key == trial_key(JOB.model_copy(update={"name": "other", "priority": 5}), {"b": 2, "a": 1}, {"d": "m1"})
    for other in (
        trial_key(JOB, {"a": 1, "b": 3}, {"d": "m1"}),
        trial_key(JOB, {"a": 1, "b": 2}, {"d": "m2"}),
        trial_key(JOB.model_copy(update={"accels": 2}), {"a": 1, "b": 2}, {"d": "m1"}),
        trial_key(JOB, {"a": 1, "b": 2}, {"d": "m1", "": "other code"}),
    ):
        assert other != key
