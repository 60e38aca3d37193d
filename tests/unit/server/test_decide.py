"""The scheduler's decision: pure, so it is tested on thousands of made-up pools."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.server.scheduler.decide import MachineState, QueuedJob, decide, largest_possible


def machine(slots, used=(), name="m"):
    return MachineState(name=name, slots=slots, used=frozenset(used))


def job(id_, *, nodes=1, max_nodes=None, accels=1, priority=0, at=0.0):
    return QueuedJob(
        job_id=id_, priority=priority, order=(at, id_), min_nodes=nodes, max_nodes=max_nodes or nodes, accels=accels
    )


def test_jobs_start_in_order_of_submission():
    decision = decide([machine(2)], [job("b", at=2), job("a", at=1), job("c", at=3)])
    assert [j for j, _ in decision.starts] == ["a", "b"]
    assert decision.waiting["c"].startswith("next in line; needs 1 slot, 0 free")


def test_a_higher_priority_goes_first():
    decision = decide([machine(1)], [job("old", at=1), job("urgent", at=2, priority=5)])
    assert [j for j, _ in decision.starts] == ["urgent"]


def test_a_gang_gets_all_its_nodes_or_none():
    assert decide([machine(3)], [job("g", nodes=2, accels=2)]).starts == []
    [(_, gang)] = decide([machine(4)], [job("g", nodes=2, accels=2)]).starts
    assert sorted(s for node in gang for s in node.slots) == [0, 1, 2, 3]


def test_a_large_job_at_the_head_is_not_overtaken():
    decision = decide([machine(4, used=[0])], [job("large", accels=4, at=1), job("small", at=2)])
    assert decision.starts == []
    assert decision.waiting["small"] == "place 2 in the queue"


def test_an_elastic_job_takes_what_there_is_between_its_bounds():
    [(_, gang)] = decide([machine(5)], [job("e", nodes=1, max_nodes=4, accels=2)]).starts
    assert len(gang) == 2


def test_a_node_never_spans_machines():
    two = [machine(3, name="x"), machine(3, name="y")]
    assert decide(two, [job("wide", accels=4)]).starts == []
    [(_, gang)] = decide(two, [job("pair", nodes=2, accels=3)]).starts
    assert {n.machine for n in gang} == {"x", "y"}


def test_the_largest_request_that_could_run_is_named():
    pool = [machine(4, name="x"), machine(2, name="y")]
    assert largest_possible(pool, 2) == (3, 2)
    assert largest_possible(pool, 9) == (1, 4)
    assert largest_possible([], 1) == (0, 0)


pools = st.lists(
    st.integers(0, 8).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(n - 1, 0)), max_size=n))),
    max_size=4,
)
queues = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(-2, 2)), max_size=12)


@given(pools, queues)
def test_no_slot_is_given_twice_and_none_in_use_is_given_at_all(pool, queue):
    machines = [machine(n, used if n else (), name=f"m{i}") for i, (n, used) in enumerate(pool)]
    jobs = [
        job(f"j{i}", nodes=lo, max_nodes=lo + extra, accels=a, priority=p, at=i)
        for i, (lo, extra, a, p) in enumerate(queue)
    ]
    decision = decide(machines, jobs)
    given_out = [(n.machine, s) for _, gang in decision.starts for n in gang for s in n.slots]
    free = {(m.name, s) for m in machines for s in m.free}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= free
    by_id = {j.job_id: j for j in jobs}
    for job_id, gang in decision.starts:
        wanted = by_id[job_id]
        assert wanted.min_nodes <= len(gang) <= wanted.max_nodes
        assert all(len(n.slots) == wanted.accels for n in gang)
    assert {j for j, _ in decision.starts} | set(decision.waiting) == set(by_id)


@given(pools, queues)
def test_nothing_starts_ahead_of_a_job_that_has_to_wait(pool, queue):
    machines = [machine(n, used if n else (), name=f"m{i}") for i, (n, used) in enumerate(pool)]
    jobs = [
        job(f"j{i}", nodes=lo, max_nodes=lo + extra, accels=a, priority=p, at=i)
        for i, (lo, extra, a, p) in enumerate(queue)
    ]
    decision = decide(machines, jobs)
    order = [j.job_id for j in sorted(jobs, key=lambda j: (-j.priority, j.order))]
    started = [j for j, _ in decision.starts]
    assert started == order[: len(started)]
