"""The scheduler's decision: pure, so it is tested on thousands of made-up pools."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pools import busy, job, machine, pools, queues, running, seen

from shoal.server.scheduler.decide import Hold, Policy, QueuedJob, Share, decide, largest_possible
from shoal.server.scheduler.order import ranked


def started(decision):
    return [job_id for job_id, _ in decision.starts]


def test_jobs_start_in_order_of_submission():
    decision = decide(seen([machine(2)], [job("b", at=2), job("a", at=1), job("c", at=3)]))
    assert started(decision) == ["a", "b"]
    assert decision.waiting["c"].startswith("next in line; needs 1 slot, 0 free")


def test_a_higher_priority_goes_first():
    decision = decide(seen([machine(1)], [job("old", at=1), job("urgent", at=2, priority=5)]))
    assert started(decision) == ["urgent"]


def test_a_gang_gets_all_its_nodes_or_none():
    assert decide(seen([machine(3)], [job("g", nodes=2, accels=2)])).starts == []
    [(_, gang)] = decide(seen([machine(4)], [job("g", nodes=2, accels=2)])).starts
    assert sorted(s for node in gang for s in node.slots) == [0, 1, 2, 3]


def test_a_large_job_at_the_head_is_not_overtaken():
    decision = decide(seen([machine(4, used=[0])], [job("large", accels=4, at=1), job("small", at=2)]))
    assert decision.starts == []
    assert decision.waiting["small"] == "place 2 in the queue"


def test_an_elastic_job_takes_what_there_is_between_its_bounds():
    [(_, gang)] = decide(seen([machine(5)], [job("e", nodes=1, max_nodes=4, accels=2)])).starts
    assert len(gang) == 2


def test_a_node_never_spans_machines():
    two = [machine(3, name="x"), machine(3, name="y")]
    assert decide(seen(two, [job("wide", accels=4)])).starts == []
    [(_, gang)] = decide(seen(two, [job("pair", nodes=2, accels=3)])).starts
    assert {n.machine for n in gang} == {"x", "y"}


def test_a_small_job_goes_where_it_leaves_large_gaps_whole():
    two = [machine(8, name="x"), machine(8, used=range(5), name="y")]
    [(_, gang)] = decide(seen(two, [job("small", accels=2)])).starts
    assert gang[0].machine == "y"


def test_an_excluded_machine_is_never_used_and_a_preferred_one_where_it_has_room():
    two = [machine(2, name="x"), machine(2, name="y")]
    [(_, gang)] = decide(seen(two, [job("a", exclude=frozenset({"x"}))])).starts
    assert gang[0].machine == "y"
    decision = decide(seen(two, [job("b", nodes=3, prefer=frozenset({"y"}))]))
    assert [n.machine for n in decision.starts[0][1]] == ["y", "y", "x"]
    full = [machine(2, name="x"), machine(2, used=[0, 1], name="y")]
    assert decide(seen(full, [job("c", prefer=frozenset({"y"}))])).starts[0][1][0].machine == "x"
    waits = decide(seen(full, [job("d", exclude=frozenset({"x"}))]))
    assert waits.waiting["d"] == "next in line; needs 1 slot outside x, 0 free now"


def test_a_brief_job_slips_in_ahead_of_a_large_one_and_a_long_one_does_not():
    pool, live = [machine(4, used=[0])], [running("r", 1, ends=600)]
    large = job("large", accels=4, at=1)
    brief = job("brief", at=2, limit_s=500)
    long = job("long", at=3, limit_s=700)
    endless = job("endless", at=4)
    decision = decide(seen(pool, [large, brief, long, endless], live))
    assert started(decision) == ["brief"]
    assert decision.head.job_id == "large" and decision.head.starts_in_s == 600


def test_a_job_with_a_long_grace_period_must_end_before_it_is_over():
    pool, live = [machine(4, used=[0])], [running("r", 1, ends=600)]
    large = job("large", accels=4, at=1)
    assert started(decide(seen(pool, [large, job("brief", at=2, limit_s=500, grace_s=100.0)], live))) == ["brief"]
    assert started(decide(seen(pool, [large, job("brief", at=2, limit_s=500, grace_s=101.0)], live))) == []


def test_a_job_that_makes_way_is_given_its_own_time_to_save():
    asked = job("r", grace_s=300.0)
    live = [running("r", 1, stopping=True, asked=asked)]
    assert decide(seen([machine(1, used=[0])], [job("next")], live)).head.starts_in_s == 300.0


def test_slots_the_head_will_not_need_are_for_anyone():
    pool = [machine(4, used=[0], name="m"), machine(2, name="n")]
    live = [running("r", 1)]
    decision = decide(seen(pool, [job("large", accels=4, at=1), job("endless", accels=2, at=2)], live))
    assert started(decision) == ["endless"]
    assert decision.head.starts_in_s is None, "nobody knows when r ends"


def test_all_that_ends_when_the_head_starts_counts_as_left_to_others():
    pool, live = [machine(4, range(3))], [running("a", 2, ends=600), running("b", 1, ends=600)]
    decision = decide(seen(pool, [job("head", accels=2, at=1), job("endless", at=2)], live))
    assert started(decision) == ["endless"]


def test_what_cannot_run_while_a_machine_is_down_holds_up_nobody():
    decision = decide(seen([machine(2)], [job("wide", accels=4, at=1), job("small", at=2)]))
    assert started(decision) == ["small"]
    assert decision.holds["wide"] is Hold.MACHINES
    assert "more than all machines that are up" in decision.waiting["wide"]


def test_a_quota_holds_up_its_workspace_and_no_other():
    shares = {"a": Share(quota=2)}
    queue = [
        job("a1", workspace="a", at=1),
        job("a2", workspace="a", accels=2, at=2),
        job("a3", workspace="a", at=3),
        job("b1", workspace="b", at=4),
    ]
    decision = decide(seen([machine(8, used=[0])], queue, [running("r", 1, workspace="a")], shares=shares))
    assert sorted(started(decision)) == ["a1", "b1"]
    assert decision.waiting["a2"] == "its workspace may hold 2 slots at once, and holds 2 now"
    assert decision.holds["a3"] is Hold.QUOTA, "else small ones would hold off the large one for ever"


def test_a_job_one_slot_above_what_is_left_of_its_quota_waits_for_the_quota_and_reserves_nothing():
    held = running("r", 2, workspace="a")
    decision = decide(seen([machine(8, used=[0, 1])], [job("a1", workspace="a")], [held], shares={"a": Share(quota=2)}))
    assert (decision.starts, decision.reserved) == ([], [])
    assert decision.holds == {"a1": Hold.QUOTA}


def test_an_elastic_job_grows_up_to_the_quota_only():
    shares = {"a": Share(quota=3)}
    [(_, gang)] = decide(seen([machine(8)], [job("e", max_nodes=8, workspace="a")], shares=shares)).starts
    assert len(gang) == 3


def test_a_job_larger_than_its_quota_does_not_block_its_workspace():
    queue = [job("big", accels=4, workspace="a", at=1), job("ok", workspace="a", at=2)]
    assert started(decide(seen([machine(8)], queue, shares={"a": Share(quota=2)}))) == ["ok"]


def test_only_strictly_lower_priorities_make_way_the_youngest_and_fewest_first():
    live = [
        running("old", 2, priority=0, started=1),
        running("young", 2, priority=0, started=9),
        running("equal", 2, priority=5, started=10),
        running("low", 2, priority=-1, started=2),
    ]
    pool = [machine(8, used=range(8))]
    decision = decide(seen(pool, [job("urgent", accels=2, priority=5)], live))
    assert decision.preempts == {"low": "urgent"}
    decision = decide(seen(pool, [job("urgent", accels=4, priority=5)], live))
    assert decision.preempts == {"low": "urgent", "young": "urgent"}
    assert decide(seen(pool, [job("urgent", accels=8, priority=5)], live)).preempts == {}, "it would not be enough"
    assert decide(seen(pool, [job("same", accels=2, priority=-1)], live)).preempts == {}
    assert decide(seen(pool, [job("urgent", accels=2, priority=5)], live, preempt=False)).preempts == {}


def test_nothing_more_makes_way_while_enough_is_on_its_way():
    pool = [machine(4, used=range(4))]
    live = [running("leaving", 2, stopping=True), running("other", 2, started=5)]
    assert decide(seen(pool, [job("urgent", accels=2, priority=5)], live)).preempts == {}
    soon = [running("ending", 2, ends=20), running("other", 2, started=5)]
    assert decide(seen(pool, [job("urgent", accels=2, priority=5)], soon)).preempts == {}
    kept = [running("kept", 2, keeps=True), running("kept too", 2, keeps=True)]
    assert decide(seen(pool, [job("urgent", accels=2, priority=5)], kept)).preempts == {}


def test_those_that_make_way_on_machines_the_job_excludes_are_left_alone():
    pool = [machine(2, used=[0, 1], name="x"), machine(2, used=[0, 1], name="y")]
    live = [running("on x", {"x": 2}, started=9), running("on y", {"y": 2}, started=1)]
    urgent = job("urgent", accels=2, priority=5, exclude=frozenset({"x"}))
    assert decide(seen(pool, [urgent], live)).preempts == {"on y": "urgent"}


def test_workspaces_take_turns_by_what_they_have_used_for_their_weight():
    queue = [job(f"{w}{i}", workspace=w, at=i) for w in "ab" for i in range(3)]
    equal = [j.job_id for j in ranked(seen([], queue))]
    assert equal == ["a0", "b0", "a1", "b1", "a2", "b2"]
    used = [j.job_id for j in ranked(seen([], queue, shares={"a": Share(used_s=7200)}))]
    assert used == ["b0", "b1", "a0", "b2", "a1", "a2"]
    heavy = [j.job_id for j in ranked(seen([], queue, shares={"b": Share(weight=2)}))]
    assert heavy == ["a0", "b0", "b1", "a1", "b2", "a2"]
    held = [j.job_id for j in ranked(seen([], queue, [running("r", 2, workspace="a")]))]
    assert held == ["b0", "b1", "a0", "b2", "a1", "a2"]


def test_a_workspace_that_gets_nothing_is_served_when_its_patience_is_over():
    queue = [job("starved", at=0, workspace="a", priority=-50), job("urgent", at=99_000, workspace="b", priority=50)]
    assert started(decide(seen([machine(1)], queue, now=100_000))) == ["starved"]
    assert started(decide(seen([machine(1)], queue, now=80_000))) == ["urgent"]
    live = [running("r", 1, workspace="a")]
    assert started(decide(seen([machine(2, used=[0])], queue, live, now=100_000))) == ["urgent"]


def test_a_batch_keeps_its_place_and_its_longest_go_first():
    def part(id_, length):
        return replace(job(id_, expected_s=length), order=(5.0, "sweep", -length, id_))

    queue = [part("short", 10.0), part("long", 99.0), job("before", at=4), job("after", at=6)]
    assert [j.job_id for j in ranked(seen([], queue))] == ["before", "long", "short", "after"]


def test_the_largest_request_that_could_run_is_named():
    pool = [machine(4, name="x"), machine(2, name="y")]
    assert largest_possible(pool, job("a", accels=2)) == (3, 2)
    assert largest_possible(pool, job("a", accels=9)) == (1, 4)
    assert largest_possible([], job("a")) == (0, 0)


@given(pools, queues, st.dictionaries(st.sampled_from("abc"), st.integers(0, 6)))
def test_no_slot_is_given_twice_no_quota_exceeded_and_every_job_has_its_answer(machines, jobs, quotas):
    shares = {w: Share(quota=q) for w, q in quotas.items()}
    decision = decide(seen(machines, jobs, shares=shares))
    given_out = [(n.machine, s) for _, gang in decision.starts for n in gang for s in n.slots]
    free = {(m.name, s) for m in machines for s in m.free}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= free
    by_id: dict[str, QueuedJob] = {j.job_id: j for j in jobs}
    taken = dict.fromkeys("abc", 0)
    for job_id, gang in decision.starts:
        wanted = by_id[job_id]
        assert wanted.min_nodes <= len(gang) <= wanted.max_nodes
        assert all(len(n.slots) == wanted.accels and n.machine not in wanted.exclude for n in gang)
        taken[wanted.workspace] += sum(len(n.slots) for n in gang)
    assert all(taken[w] <= quota for w, quota in quotas.items())
    assert {j for j, _ in decision.starts} | set(decision.waiting) == set(by_id)
    assert not {j for j, _ in decision.starts} & set(decision.waiting)


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_same_queue_in_any_order_gets_the_same_decision(seed, shuffle):
    snapshot = replace(busy(random.Random(seed), quota=12), policy=Policy())
    queue, machines, live = list(snapshot.queue), list(snapshot.machines), list(snapshot.running)
    for part in (queue, machines, live):
        shuffle.shuffle(part)
    assert decide(snapshot) == decide(replace(snapshot, queue=queue, machines=machines, running=live))
