"""Promises of the queue over time, on generated pools simulated with the scheduler's own decision."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pools import busy, job, machine, seen

from shoal.server.scheduler.decide import Policy, Share
from shoal.server.scheduler.reserve import could_ever
from shoal.server.scheduler.share import aged, used_between
from shoal.server.scheduler.simulate import play

seeds = st.integers(0, 1_000_000)
few = settings(max_examples=40, deadline=None)


def true_lengths(state, rng, spread=0.5):
    """Return the true duration of each job, near the expected one and never beyond its limit."""
    lengths = {r.job_id: r.ends_in_s * rng.uniform(1 - spread, 1 + spread) for r in state.running}
    return lengths | {j.job_id: (j.expected_s or 500.0) * rng.uniform(1 - spread, 1 + spread) for j in state.queue}


@few
@given(seeds, st.booleans(), st.sampled_from([None, 8, 16]))
def test_all_that_could_ever_run_runs_and_nothing_is_used_beyond_what_there_is(seed, preempt, quota):
    rng = random.Random(seed)
    state = replace(busy(rng, quota=quota, queued=16), policy=Policy(preempt=preempt))
    total = {m.name: m.slots for m in state.machines}

    def watch(view, decision):
        held, of_workspace = dict.fromkeys(total, 0), {}
        for r in view.running:
            of_workspace[r.workspace] = of_workspace.get(r.workspace, 0) + r.total
            for name, count in r.slots.items():
                held[name] += count
        assert all(held[m.name] == len(m.used) <= m.slots for m in view.machines)
        asked = {j.job_id: j for j in view.queue}
        for job_id, gang in decision.starts:
            of_workspace.setdefault(asked[job_id].workspace, 0)
            of_workspace[asked[job_id].workspace] += sum(len(n.slots) for n in gang)
        before = {w: sum(r.total for r in state.running if r.workspace == w) for w in of_workspace}
        if quota is not None:
            assert all(n <= max(quota, before[w]) for w, n in of_workspace.items())
        higher = {r.job_id: r.priority for r in view.running}
        assert all(higher[victim] < asked[winner].priority for victim, winner in decision.preempts.items())

    played = play(state, true_lengths(state, rng), watch=watch)
    able = {j.job_id for j in state.queue if could_ever(state.machines, j)}
    able -= {j.job_id for j in state.queue if quota is not None and j.min_slots > quota}
    assert able <= set(played.ends)


@few
@given(seeds)
def test_a_reserved_start_is_kept_as_long_as_the_job_is_next(seed):
    """Whatever runs or is backfilled within its limit, the first job starts when predicted, or sooner."""
    rng = random.Random(seed)
    state = busy(rng, queued=16, workspaces=3)
    latest = {r.job_id: r.ends_in_s for r in state.running}
    # Jobs end by what was expected of them at the latest, which is what a reservation rests on.
    queue = [replace(j, expected_s=j.limit_s or j.expected_s) for j in state.queue]
    lengths = {k: v * rng.uniform(0.3, 1) for k, v in latest.items()}
    lengths |= {j.job_id: j.expected_s * rng.uniform(0.3, 1) for j in queue}
    promised: dict[str, float] = {}

    def watch(view, decision):
        for job_id, _ in decision.starts:
            if job_id in promised:
                assert view.now <= promised.pop(job_id) + 1e-6
        if decision.head is not None and decision.head.starts_in_s is not None:
            head = decision.head.job_id
            promised[head] = min(promised.get(head, float("inf")), view.now + decision.head.starts_in_s)

    play(replace(state, queue=queue), lengths, watch=watch)
    assert not promised


@few
@given(seeds)
def test_slipping_in_pays_and_never_costs_the_first_in_line(seed):
    rng = random.Random(seed)
    state = busy(rng, queued=16, workspaces=1)
    lengths = {r.job_id: r.ends_in_s for r in state.running}
    lengths |= {j.job_id: j.expected_s for j in state.queue}
    with_limits = replace(state, queue=[replace(j, limit_s=j.expected_s) for j in state.queue])
    without = replace(state, queue=[replace(j, limit_s=None) for j in state.queue])
    heads = []
    kept = play(with_limits, lengths, watch=lambda _, d: heads.append(d.head.job_id if d.head else None))
    plain = play(without, lengths)
    if heads[0] is not None:
        assert kept.starts[heads[0]] <= plain.starts[heads[0]] + 1e-6


def test_an_endless_stream_of_higher_priority_starves_nobody():
    policy = {"patience_s": 5_000.0, "half_life_s": 5_000.0}
    poor = job("poor", accels=2, at=0, priority=-10, workspace="poor", expected_s=500.0)
    stream = [
        job(f"s{i:03}", at=100.0 * i, priority=10, workspace="rich", expected_s=250.0, limit_s=250.0)
        for i in range(1, 400)
    ]
    pool = [machine(2)]
    lengths = {j.job_id: j.expected_s for j in [poor, *stream]}
    first = job("s000", at=-1, priority=10, workspace="rich", expected_s=900.0)
    lengths["s000"] = 900.0
    played = play(seen(pool, [first, poor], now=0.0, **policy), lengths, arrivals=stream)
    assert played.starts["poor"] <= 5_000 + 250 + 1
    assert played.preempted["poor"] == 0, "it has waited long enough to be let alone"


def test_a_small_jobs_stream_of_the_same_priority_does_not_starve_a_large_one():
    large = job("large", accels=4, at=0.5, workspace="a", expected_s=100.0)
    stream = [job(f"s{i:03}", at=0.0 + i, workspace="b", expected_s=10.0, limit_s=10.0) for i in range(500)]
    played = play(seen([machine(4)], [large], now=0.0), dict.fromkeys([s.job_id for s in stream], 10.0) | {"large": 100.0},
                  arrivals=stream)  # fmt: skip
    assert played.starts["large"] <= 30


def test_use_over_time_follows_the_weights():
    queue = [job(f"{w}{i:03}", at=float(i), workspace=w, expected_s=100.0) for w in "ab" for i in range(400)]
    shares = {"a": Share(weight=1), "b": Share(weight=3)}
    rng = random.Random(5)
    lengths = {j.job_id: rng.uniform(50, 150) for j in queue}
    seconds = {"a": 0.0, "b": 0.0}
    played = play(seen([machine(8)], queue, now=0.0, shares=shares), lengths, max_passes=400)
    for job_id in played.starts:
        seconds[job_id[0]] += lengths[job_id]
    assert 2.6 < seconds["b"] / seconds["a"] < 3.4


def test_the_preempted_go_on_where_they_were_and_lose_only_the_wait():
    low = job("low", at=0, accels=2, expected_s=1_000.0)
    urgent = job("urgent", at=300.0, accels=2, priority=5, expected_s=200.0)
    played = play(seen([machine(2)], [low], now=0.0), {"low": 1_000.0, "urgent": 200.0}, arrivals=[urgent])
    assert played.preempted == {"low": 1}
    assert played.starts["urgent"] == 310.0
    assert played.ends == {"urgent": 510.0, "low": 1_000.0 + 200.0}


@given(st.integers(1, 8), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1, 1e5))
def test_use_counted_in_one_piece_or_in_two_is_the_same(slots, first, second, half_life):
    now = first + second
    whole = used_between(slots, 0.0, now, now, half_life)
    halfway = aged({}, {"w": slots}, 0.0, first, half_life)
    parts = aged(halfway, {"w": slots}, first, now, half_life)["w"]
    assert abs(whole - parts) <= 1e-6 * max(1.0, whole)
    assert whole <= slots * now + 1e-6
