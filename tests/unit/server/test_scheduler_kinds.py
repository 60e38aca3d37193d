"""Kinds of slots in the queue: no gang mixes them, accelerators come first, and `device` is obeyed."""

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import job, machine, running, seen

from shoal.server.scheduler.decide import Hold, Share, decide, largest_possible
from shoal.server.scheduler.explain import explain
from shoal.server.scheduler.free_slots import FreeSlots
from shoal.server.scheduler.kinds import Kinds
from shoal.server.scheduler.reserve import could_ever
from shoal.server.scheduler.simulate import play

CPU, GPU = machine(4, name="local"), machine(8, name="gpu1", kind="cuda")
FULL = machine(8, range(8), name="gpu1", kind="cuda")
ON_GPU = running("r", {"gpu1": 8}, ends=600)


def placed(decision):
    return {job_id: {node.machine for node in gang} for job_id, gang in decision.starts}


def test_a_plain_job_goes_to_the_gpu_machine_and_not_to_the_tighter_cpu_server():
    pool = [machine(1, name="local"), GPU]
    assert FreeSlots({"local": 1, "gpu1": 8}, Kinds(pool)).choose(job("a"), 1) == {"gpu1": 1}
    assert placed(decide(seen(pool, [job("a")]))) == {"a": {"gpu1"}}


def test_a_gang_never_mixes_kinds():
    decision = decide(seen([CPU, GPU], [job("g", nodes=3, accels=4)]))
    assert (decision.starts, decision.holds) == ([], {"g": Hold.MACHINES})
    assert decision.waiting["g"] == "needs 3 × 4 slots of one kind: more than the machines that are up now have"
    elastic = decide(seen([CPU, GPU], [job("e", nodes=1, max_nodes=3, accels=4)]))
    assert placed(elastic) == {"e": {"gpu1"}}


def test_a_plain_job_waits_for_busy_gpus_and_any_takes_the_cpu():
    waits = decide(seen([CPU, FULL], [job("plain")], [ON_GPU]))
    assert waits.waiting == {"plain": "next in line; needs 1 cuda slot, 0 free now"}
    assert placed(decide(seen([CPU, FULL], [job("any", device="any")], [ON_GPU]))) == {"any": {"local"}}
    assert placed(decide(seen([CPU, GPU], [job("any", device="any")]))) == {"any": {"gpu1"}}


def test_a_plain_job_runs_on_cpus_where_no_accelerator_could_ever_hold_it():
    assert placed(decide(seen([CPU], [job("a")]))) == {"a": {"local"}}
    small = machine(1, name="gpu1", kind="cuda")
    assert placed(decide(seen([CPU, small], [job("wide", accels=2)]))) == {"wide": {"local"}}
    assert placed(decide(seen([CPU, GPU], [job("away", exclude=frozenset({"gpu1"}))]))) == {"away": {"local"}}


@pytest.mark.parametrize(("device", "where"), [("cpu", "local"), ("cuda", "gpu1"), ("rocm", "amd1"), ("xpu", "arc1")])
def test_a_job_that_names_a_device_gets_that_and_no_other(device, where):
    pool = [CPU, GPU, machine(2, name="amd1", kind="rocm"), machine(2, name="arc1", kind="xpu")]
    assert placed(decide(seen(pool, [job("a", device=device)]))) == {"a": {where}}
    others = [m for m in pool if m.name != where]
    decision = decide(seen(others, [job("a", device=device)]))
    assert (decision.starts, decision.holds) == ([], {"a": Hold.MACHINES})
    assert decision.waiting["a"] == f"needs 1 {device} slot: no machine with {device} slots is up now"


@pytest.mark.parametrize("state", ["lost", "draining", "not answering"])
def test_a_plain_job_waits_for_accelerators_that_are_out_for_a_while(state):
    away = [replace(GPU, state=state)]
    decision = decide(seen([CPU], [job("plain", at=1), job("any", device="any", at=2)], away=away))
    assert placed(decision) == {"any": {"local"}}
    assert decision.holds == {"plain": Hold.MACHINES}
    assert decision.waiting["plain"] == f"needs 1 cuda slot: no machine with cuda slots is up now (gpu1 is {state})"


def test_preferred_machines_are_chosen_within_the_kinds_a_job_may_use():
    liked = frozenset({"local"})
    assert placed(decide(seen([CPU, GPU], [job("a", prefer=liked)]))) == {"a": {"gpu1"}}
    assert placed(decide(seen([CPU, GPU], [job("a", prefer=liked, device="any")]))) == {"a": {"local"}}


def test_jobs_for_cpus_start_behind_a_job_that_waits_for_gpus():
    queue = [job("gpu", at=1), job("cpu", device="cpu", at=2), job("second", at=3)]
    decision = decide(seen([CPU, FULL], queue, [replace(ON_GPU, ends_in_s=None)]))
    assert placed(decision) == {"cpu": {"local"}}
    assert decision.waiting["second"] == "place 2 in the queue"


def test_each_kind_has_its_own_next_in_line():
    """Else small jobs for CPUs would hold off a large one for as long as GPUs are awaited."""
    busy = machine(4, [0], name="local")
    live = [ON_GPU, running("c", {"local": 1}, ends=300)]
    queue = [job("gpu", at=1), job("large", device="cpu", accels=4, at=2), job("small", device="cpu", at=3)]
    decision = decide(seen([busy, FULL], queue, live))
    assert decision.starts == []
    assert [(r.job_id, r.starts_in_s) for r in decision.reserved] == [("gpu", 600), ("large", 300)]
    brief = [*queue[:2], replace(queue[2], limit_s=200.0)]
    assert placed(decide(seen([busy, FULL], brief, live))) == {"small": {"local"}}


def test_both_heads_keep_their_turn_when_shares_change():
    queue = [job("gpu", at=1, workspace="a"), job("large", device="cpu", accels=4, at=2, workspace="a"),
             job("other", device="cpu", accels=4, at=3, workspace="b")]  # fmt: skip
    live = [ON_GPU, running("c", {"local": 1}, ends=300)]
    before = seen([machine(4, [0], name="local"), FULL], queue, live, shares={"b": Share(used_s=1e9)})
    promised = tuple(r.job_id for r in decide(before).reserved)
    later = replace(before, promised=promised, shares={"a": Share(used_s=1e9)})
    assert [r.job_id for r in decide(later).reserved] == list(promised) == ["gpu", "large"]


def test_only_jobs_on_the_kind_that_is_needed_make_way():
    live = [running("on cpu", {"local": 4}, started=9), replace(ON_GPU, ends_in_s=None)]
    pool = [machine(4, range(4), name="local"), FULL]
    assert decide(seen(pool, [job("urgent", priority=5)], live)).preempts == {"r": "urgent"}
    assert decide(seen(pool, [job("urgent", priority=5, device="cpu")], live)).preempts == {"on cpu": "urgent"}


def test_a_job_on_gpus_does_not_grow_onto_cpus():
    asked = job("e", max_nodes=4, accels=4)
    live = [running("e", {"gpu1": 8}, asked=asked, may_grow=True)]
    assert decide(seen([CPU, FULL], [], live)).grows == {}
    more = machine(4, name="gpu2", kind="cuda")
    assert decide(seen([CPU, FULL, more], [], live)).grows == {"e": 3}
    assert decide(seen([CPU, FULL], [], [replace(live[0], asked=replace(asked, device="any"))])).grows == {}


def test_a_job_that_waits_for_gpus_does_not_keep_one_on_cpus_from_growing():
    asked = job("e", max_nodes=4, device="cpu")
    live = [running("e", {"local": 1}, asked=asked, may_grow=True), ON_GPU]
    pool = [machine(4, [0], name="local"), FULL]
    assert decide(seen(pool, [job("gpu")], live)).grows == {"e": 4}
    assert decide(seen(pool, [job("cpu", accels=4, device="cpu")], live)).grows == {}


def test_why_counts_only_what_the_job_may_use_and_suggests_any_device_last():
    queue = [job("cpu", device="cpu", accels=4, at=1), job("me", at=2)]
    live = [replace(ON_GPU, priority=100), running("c", {"local": 1}, ends=50, priority=100)]
    found = explain(seen([machine(4, [0], name="local"), FULL], queue, live), "me")
    assert (found.hold, found.fits_now, found.waits_for) == (Hold.SLOTS, False, ["r"])
    assert (found.head, found.head_starts_in_s, found.forecast.starts_in_s) == ("me", 600, 600)
    alone = explain(seen([CPU, FULL], [job("me")], live[:1]), "me")
    assert alone.change.fields == {"device": "any"}
    assert explain(seen([machine(1, [0])], [job("me")], [running("r", 1, priority=100)]), "me").change is None


def test_the_largest_possible_is_that_of_one_kind():
    assert largest_possible([CPU, GPU], job("a", accels=4)) == (2, 4)
    assert largest_possible([CPU, GPU], job("a", accels=4, device="cpu")) == (1, 4)
    assert largest_possible([CPU, GPU], job("a", device="rocm")) == (0, 0)


kinds = st.sampled_from(["cpu", "cuda", "rocm", "xpu"])
devices = st.sampled_from(["auto", "any", "cpu", "cuda", "rocm", "xpu"])
sizes = st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(n - 1, 0)), max_size=n)))
mixed = st.lists(st.tuples(sizes, kinds, st.sampled_from(["", "", "slurm:"])), max_size=6).map(
    lambda found: [
        machine(n, used if n else (), name=f"{zone}m{i}", kind=kind) for i, ((n, used), kind, zone) in enumerate(found)
    ]
)
asked = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(1, 4),
        st.integers(-1, 1),
        devices,
        st.sampled_from([None, 50.0]),
        st.frozensets(st.sampled_from(["m0", "m1"]), max_size=1),
        st.frozensets(st.sampled_from(["m2", "m3"]), max_size=1),
    ),
    max_size=10,
).map(
    lambda found: [
        job(
            f"j{i}", nodes=lo, max_nodes=lo + up, accels=a, priority=p, at=i, device=d, limit_s=s, exclude=ex, prefer=li
        )
        for i, (lo, up, a, p, d, s, ex, li) in enumerate(found)
    ]
)


def obeys(wanted, kind, pool):
    """Return whether a job may use slots of this kind, computed in a slow and simple way."""
    if wanted.device not in ("auto", "any"):
        return kind == wanted.device
    if wanted.device == "any" or kind != "cpu":
        return True
    groups: dict[tuple[str, str], int] = {}
    for m in pool:
        if m.kind != "cpu" and m.name not in wanted.exclude:
            key = (m.name.rpartition(":")[0], m.kind)
            groups[key] = groups.get(key, 0) + m.slots // wanted.accels
    return max(groups.values(), default=0) < wanted.min_nodes


def check(view, decision):
    """Every start of a decision is on machines in service, of one kind the job may use, and on free slots of theirs."""
    free = {m.name: set(m.free) for m in view.machines}
    of = {m.name: m.kind for m in view.machines}
    by_id = {j.job_id: j for j in view.queue}
    for job_id, gang in decision.starts:
        wanted = by_id[job_id]
        assert wanted.min_nodes <= len(gang) <= wanted.max_nodes
        assert all(node.machine in free for node in gang), "on a machine that is drained or lost"
        [kind] = {of[node.machine] for node in gang}
        assert obeys(wanted, kind, [*view.machines, *view.away])
        for node in gang:
            assert len(node.slots) == wanted.accels and set(node.slots) <= free[node.machine]
            assert node.machine not in wanted.exclude
            free[node.machine] -= set(node.slots)
    assert {job_id for job_id, _ in decision.starts} | set(decision.waiting) == set(by_id)


@settings(max_examples=int(os.environ.get("SHOAL_SEQUENCES", "150")), deadline=None)
@given(mixed, asked, st.sets(st.integers(0, 5), max_size=3))
def test_no_gang_is_mixed_nothing_drained_or_overused_and_every_device_is_obeyed(pool, queue, drained):
    up = [m for i, m in enumerate(pool) if i not in drained]
    away = [replace(m, state="draining") for i, m in enumerate(pool) if i in drained]
    view = seen(up, queue, away=away)
    decision = decide(view)
    check(view, decision)
    for job_id in list(decision.waiting)[:1]:
        explain(view, job_id)


@settings(max_examples=40, deadline=None)
@given(mixed, asked, st.integers(0, 1_000_000))
def test_played_forward_all_that_could_ever_run_runs_on_one_kind_each(pool, queue, seed):
    rng = random.Random(seed)
    empty = [replace(m, used=frozenset()) for m in pool]
    lengths = {j.job_id: rng.uniform(10, 100) for j in queue}
    view = seen(empty, [replace(j, limit_s=None) for j in queue], now=0.0)
    played = play(view, lengths, watch=check)
    assert set(played.ends) == {j.job_id for j in queue if could_ever(empty, j)}
