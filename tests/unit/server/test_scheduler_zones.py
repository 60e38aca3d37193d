"""A cluster with a queue of its own is a zone: no gang is partly in it."""

from hypothesis import given
from hypothesis import strategies as st
from pools import job, machine, queues, running, seen

from shoal.server.scheduler.decide import Hold, decide, largest_possible
from shoal.server.scheduler.kinds import zone
from shoal.server.scheduler.reserve import could_ever

MIXED = [machine(2, name="local"), machine(2, name="slurm:c1"), machine(2, name="slurm:c2")]


def placed(decision):
    return {job_id: {node.machine for node in gang} for job_id, gang in decision.starts}


def test_machines_of_a_cluster_are_told_by_what_stands_before_the_colon():
    assert [zone(name) for name in ("local", "gpu-1", "slurm:c1", "hpc:a:b")] == ["", "", "slurm", "hpc"]


def test_a_gang_is_in_one_zone_even_where_all_together_would_do():
    assert placed(decide(seen(MIXED, [job("g", nodes=2, accels=2)]))) == {"g": {"slurm:c1", "slurm:c2"}}
    decision = decide(seen(MIXED, [job("g", nodes=3, accels=2)]))
    assert (decision.starts, decision.holds) == ([], {"g": Hold.MACHINES})


def test_one_that_could_never_fit_a_zone_holds_nobody_up():
    decision = decide(seen(MIXED, [job("large", nodes=3, accels=2, at=1), job("small", at=2)]))
    assert placed(decision) == {"small": {"local"}}


def test_our_own_machines_come_first_where_both_would_do():
    assert placed(decide(seen(MIXED, [job("one", accels=2)]))) == {"one": {"local"}}
    assert placed(decide(seen(MIXED, [job("two", nodes=2)]))) == {"two": {"local"}}


def test_a_preferred_or_not_excluded_zone_is_taken():
    liked = job("g", nodes=2, prefer=frozenset({"slurm:c2"}))
    assert placed(decide(seen(MIXED, [liked]))) == {"g": {"slurm:c2"}}
    away = job("g", nodes=2, exclude=frozenset({"local"}))
    assert placed(decide(seen(MIXED, [away]))) == {"g": {"slurm:c1"}}


def test_the_largest_possible_is_that_of_the_largest_zone():
    assert largest_possible(MIXED, job("j", accels=2)) == (2, 2)
    assert largest_possible(MIXED, job("j", accels=1)) == (4, 1)


def test_the_head_is_kept_room_in_one_zone():
    full = [machine(2, [0, 1], name="local"), machine(2, [0], name="slurm:c1")]
    live = [running("r", {"local": 2}, ends=100.0), running("s", {"slurm:c1": 1}, ends=50.0)]
    decision = decide(seen(full, [job("head", nodes=2)], live))
    assert (decision.head.starts_in_s, dict(decision.head.nodes)) == (50.0, {"slurm:c1": 2})


zoned = st.lists(st.tuples(st.sampled_from(["", "a:", "b:"]), st.integers(0, 4)), max_size=6).map(
    lambda found: [machine(n, name=f"{prefix}m{i}") for i, (prefix, n) in enumerate(found)]
)


@given(zoned, queues)
def test_no_gang_ever_spans_two_zones_and_what_waits_for_slots_could_have_them(machines, queue):
    decision = decide(seen(machines, queue))
    asked = {j.job_id: j for j in queue}
    for job_id, gang in decision.starts:
        assert len({zone(node.machine) for node in gang}) == 1
        assert asked[job_id].min_nodes <= len(gang) <= asked[job_id].max_nodes
    for job_id, hold in decision.holds.items():
        if hold is Hold.SLOTS:
            assert could_ever(machines, asked[job_id])
