"""Running jobs that grow: never at the cost of a waiting job, and the decision holds."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pools import job, machine, running, seen

from shoal.server.scheduler.decide import MachineState, Share, decide
from shoal.server.scheduler.explain import explain
from shoal.server.scheduler.simulate import play

TWO = [machine(2, [0, 1], name="x"), machine(2, name="y")]


def elastic(id_="e", *, slots=None, most=2, accels=2, may_grow=True, workspace="", **more):
    """Running on one node, and glad of more."""
    asked = job(id_, max_nodes=most, accels=accels, workspace=workspace)
    slots = slots or {"x": accels}
    return running(id_, slots, asked=asked, may_grow=may_grow, workspace=workspace, **more)


def test_a_machine_that_comes_back_is_taken_by_the_job_that_wants_it():
    assert decide(seen(TWO, [], [elastic()])).grows == {"e": 2}


def test_nothing_grows_that_did_not_ask_or_has_all_it_asked_for_or_just_started():
    assert decide(seen(TWO, [], [elastic(may_grow=False)])).grows == {}
    assert decide(seen(TWO, [], [elastic(most=1)])).grows == {}
    full = [machine(2, [0, 1], name="x"), machine(2, [0], name="y")]
    assert decide(seen(full, [], [elastic(), running("other", {"y": 1})])).grows == {}


def test_a_waiting_job_comes_before_a_growing_one():
    waits = job("wide", nodes=2, accels=2)
    decision = decide(seen(TWO, [waits], [elastic()]))
    assert "wide" in decision.waiting and decision.grows == {}
    starts = decide(seen(TWO, [job("narrow", accels=2)], [elastic()]))
    assert starts.starts and starts.grows == {}, "it has taken the room"


def test_what_cannot_run_anyway_keeps_nobody_from_growing():
    impossible = job("huge", nodes=9, accels=2)
    assert decide(seen(TWO, [impossible], [elastic()])).grows == {"e": 2}
    shares = {"w": Share(quota=1)}
    assert decide(seen(TWO, [job("q", accels=2, workspace="w")], [elastic()], shares=shares)).grows == {"e": 2}


def test_it_grows_within_its_quota_and_not_past_a_neighbour_who_waits_for_that_quota():
    assert decide(seen(TWO, [], [elastic(workspace="w")], shares={"w": Share(quota=3)})).grows == {}
    assert decide(seen(TWO, [], [elastic(workspace="w")], shares={"w": Share(quota=4)})).grows == {"e": 2}
    neighbour = job("n", accels=4, workspace="w")
    assert decide(seen(TWO, [neighbour], [elastic(workspace="w")], shares={"w": Share(quota=4)})).grows == {}


def test_the_most_important_comes_first_and_none_while_another_is_told_to_end():
    pool = [machine(1, [0], name="x"), machine(1, [0], name="y"), machine(1, name="z")]
    low = elastic("low", slots={"x": 1}, accels=1)
    high = elastic("high", slots={"y": 1}, accels=1, priority=1)
    assert list(decide(seen(pool, [], [low, high])).grows.items()) == [("high", 2), ("low", 2)]
    assert decide(seen(pool, [], [low, replace(high, stopping=True)])).grows == {}


def test_a_forecast_and_a_reason_are_as_without_growing_jobs():
    waits = job("wide", nodes=2, accels=2, at=1.0)
    told = explain(seen(TWO, [waits], [elastic(ends=100.0)]), "wide")
    assert told.forecast.starts_in_s == 100.0 and told.waits_for == ["e"]
    played = play(seen(TWO, [], [elastic(ends=50.0)]), {"e": 50.0})
    assert played.ends == {"e": 1050.0} and not played.preempted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1_000_000))
def test_a_job_that_is_told_to_grow_starts_at_once_with_as_many_nodes(seed):
    """In any situation, the free slots suffice for the growing job, and no other job starts later because of it."""
    rng = random.Random(seed)
    names = [f"m{i}" for i in range(rng.randint(1, 4))]
    used, live = {name: set() for name in names}, []
    size = {name: rng.randint(1, 6) for name in names}
    for number in range(rng.randint(1, 5)):
        accels, most = rng.choice((1, 1, 2)), rng.randint(1, 5)
        held = {}
        for name in rng.sample(names, len(names)):
            if sum(held.values()) < accels * most and size[name] - len(used[name]) >= accels and rng.random() < 0.6:
                taken = [s for s in range(size[name]) if s not in used[name]][:accels]
                used[name] |= set(taken)
                held[name] = accels
        if held:
            asked = job(f"r{number}", max_nodes=max(most, len(held)), accels=accels, workspace=rng.choice("ab"),
                        device=rng.choice(("auto", "any", "cpu", "cuda")))  # fmt: skip
            grows = rng.random() < 0.7
            live.append(
                running(asked.job_id, held, asked=asked, may_grow=grows, workspace=asked.workspace, started=number)
            )
    kind = {name: rng.choice(("cpu", "cpu", "cuda")) for name in names}
    machines = [MachineState(name=n, slots=size[n], used=frozenset(used[n]), kind=kind[n]) for n in names]
    queue = [
        job(
            f"q{i}",
            nodes=rng.randint(1, 3),
            accels=rng.randint(1, 4),
            device=rng.choice(("auto", "any", "cpu", "cuda")),
        )
        for i in range(rng.choice((0, 0, 1)))
    ]
    shares = {"a": Share(quota=rng.randint(1, 12))} if rng.random() < 0.3 else {}
    before = seen(machines, queue, live, shares=shares)
    decision = decide(before)
    for job_id, nodes in decision.grows.items():
        [grower] = [r for r in live if r.job_id == job_id]
        assert grower.may_grow and grower.total // grower.asked.accels < nodes <= grower.asked.max_nodes
        after = decide(requeued(before, decision, grower, rng))
        started = dict(after.starts)
        assert len(started[job_id]) == nodes
        assert after.grows.get(job_id) is None


def requeued(before, decision, grower, rng):
    """The same, once what the decision starts has started, and the job has saved, ended and is in the queue again."""
    used = {m.name: set(m.used) for m in before.machines}
    for _, gang in decision.starts:
        for node in gang:
            used[node.machine] |= set(node.slots)
    for name, count in grower.slots.items():
        for slot in rng.sample(sorted(next(m for m in before.machines if m.name == name).used), count):
            used[name].discard(slot)
    started = {job_id for job_id, _ in decision.starts}
    asked = {j.job_id: j for j in before.queue}
    new = [
        running(job_id, {m: sum(len(n.slots) for n in gang if n.machine == m) for m in {n.machine for n in gang}},
                asked=asked[job_id], workspace=asked[job_id].workspace)
        for job_id, gang in decision.starts
    ]  # fmt: skip
    return replace(
        before,
        machines=[replace(m, used=frozenset(used[m.name])) for m in before.machines],
        queue=[*(j for j in before.queue if j.job_id not in started), grower.asked],
        running=[*(r for r in before.running if r is not grower), *new],
    )
