"""`why` on made-up pools: the start it foretells comes true, and the change it suggests does start the job."""

import functools
import random
from dataclasses import replace

import pytest
from pools import busy, job, machine, running, seen

from shoal.server.scheduler.decide import Hold, Policy, Share, decide
from shoal.server.scheduler.explain import Change, changed, explain
from shoal.server.scheduler.simulate import play

CASES = 50


@functools.cache
def cases():
    """Random pools and, of each, a random job that waits for what will come, with what is told of it."""
    found, seed = [], 0
    while len(found) < CASES:
        rng, seed = random.Random(seed), seed + 1
        state = busy(rng, quota=rng.choice((None, None, 12)), queued=rng.choice((4, 12, 24)))
        state = replace(state, policy=Policy(preempt=rng.random() < 0.5))
        if waiting := list(decide(state).waiting):
            chosen = rng.choice(waiting)
            asked = next(j for j in state.queue if j.job_id == chosen)
            told = explain(state, asked.job_id)
            if told.forecast.starts_in_s is not None:
                found.append((state, asked, told))
    return found


@pytest.mark.parametrize(("spread", "least"), [(0.05, CASES), (0.1, CASES - 2)])
def test_the_start_it_foretells_is_within_a_fifth(spread, least):
    """Also where every job takes a little more or less than was expected of it."""
    errors = []
    for number, (state, asked, told) in enumerate(cases()):
        rng = random.Random(1000 + number)
        expected = {r.job_id: r.ends_in_s for r in state.running} | {j.job_id: j.expected_s for j in state.queue}
        lengths = {name: length * rng.uniform(1 - spread, 1 + spread) for name, length in expected.items()}
        real = play(state, lengths).starts[asked.job_id] - state.now
        assert told.hold is not None and told.forecast.sure and real > 0
        errors.append(abs(told.forecast.starts_in_s - real) / real)
    assert sum(e <= 0.2 for e in errors) >= least, sorted(errors)[-6:]


def test_what_it_suggests_starts_the_job_and_nothing_would_where_it_suggests_nothing():
    suggested = 0
    for state, asked, told in cases():
        if told.change is None:
            least = {"min_nodes": 1, "accels": 1, "priority": 100, "exclude": frozenset()}
            quota = 99 if state.shares[asked.workspace].quota else None
            nothing = decide(changed(state, asked, Change(least, quota)))
            assert asked.job_id in nothing.waiting and not nothing.preempts
            continue
        suggested += 1
        expected = {r.job_id: r.ends_in_s for r in state.running} | {j.job_id: j.expected_s for j in state.queue}
        played = play(changed(state, asked, told.change), expected, until=asked.job_id)
        wait = state.policy.grace_s if told.change.preempts else 0.0
        assert played.starts[asked.job_id] <= state.now + wait
    assert suggested >= CASES / 2


def one(machines, queue, live=(), **more):
    return explain(seen(machines, queue, live, **more), queue[-1].job_id)


def test_the_head_waits_for_slots_held_by_named_jobs():
    live = [running("a", {"x": 4}, ends=300), running("b", {"y": 4}, ends=900)]
    pool = [machine(4, range(4), "x"), machine(4, range(4), "y")]
    found = one(pool, [job("me", accels=4, expected_s=60.0)], live)
    assert (found.hold, found.waits_for, found.forecast.starts_in_s) == (Hold.SLOTS, ["a"], 300)
    assert found.forecast.sure


def test_dropping_an_exclusion_is_suggested_before_anything_that_costs():
    pool = [machine(2, name="x"), machine(2, range(2), "y")]
    me = job("me", accels=2, exclude=frozenset({"x"}))
    found = one(pool, [me], [running("r", {"y": 2}, ends=100)])
    assert found.change.fields == {"exclude": frozenset()}


def test_a_promise_to_be_brief_is_suggested_where_the_job_is_known_to_be():
    pool, live = [machine(4, [0])], [running("r", 1, ends=1_000)]
    queue = [job("large", accels=4, at=1), job("me", at=2, expected_s=300.0)]
    found = one(pool, queue, live)
    assert found.hold is Hold.TURN and found.fits_now and found.head == "large"
    assert found.change.fields == {"limit_s": 990.0}
    unknown = one(pool, [queue[0], job("me", at=2)], live)
    assert unknown.change.fields == {"priority": 1}, "a limit it may not keep would kill it"


@pytest.mark.parametrize(("nodes", "accels", "fields"), [(3, 1, {"min_nodes": 2}), (1, 4, {"accels": 2})])
def test_the_largest_size_that_starts_now_is_suggested(nodes, accels, fields):
    found = one([machine(4, range(2))], [job("me", nodes=nodes, accels=accels)], [running("r", 2, ends=50)])
    assert found.change.fields == fields


def test_a_used_up_quota_is_named_and_the_one_that_would_do():
    live = [running("r", 2, workspace="a", ends=500)]
    found = one([machine(8, range(2))], [job("me", workspace="a", accels=1)], live, shares={"a": Share(quota=2)})
    assert found.hold is Hold.QUOTA and found.fits_now
    assert found.change.quota == 3
    assert found.forecast.starts_in_s == 500


def test_a_higher_priority_is_suggested_with_who_would_make_way():
    found = one([machine(2, range(2))], [job("me", accels=1)], [running("r", 2, ends=9_999)])
    assert (found.change.fields, found.change.preempts) == ({"priority": 1}, ("r",))
    most = one([machine(1, [0])], [job("me")], [running("r", 1, ends=99, priority=100)])
    assert most.change is None


def test_a_start_that_rests_on_a_guess_is_not_sure():
    found = one([machine(1, [0])], [job("me")], [running("r", 1, started=400.0)])
    assert found.forecast.starts_in_s == 600 and not found.forecast.sure


def test_a_queue_of_ten_thousand_is_foretold_too():
    queue = [job(f"j{i:05}", at=float(i), expected_s=100.0) for i in range(10_000)]
    found = explain(seen([machine(10)], queue), "j09999")
    assert found.forecast.starts_in_s == pytest.approx(100_000, rel=0.1)
