"""A job that met a fault of its machine goes elsewhere, or comes back after a pause."""

import pytest
from pools import job, machine, running, seen
from sqlalchemy import select

from shoal.agent.node.end_reasons import explain
from shoal.core.jobs import JobSpec
from shoal.core.states import JobState, NodeState
from shoal.engines.base import AgentState, Machine
from shoal.server.jobs import agents
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt, Node
from shoal.server.policy import AgentIdentity
from shoal.server.scheduler.avoid import PAUSE_LEAST_S, PAUSE_MOST_S, Ended, avoided
from shoal.server.scheduler.decide import Placement, decide
from shoal.server.scheduler.explain import explain as explain_wait
from shoal.server.scheduler.explain import forecast
from shoal.server.scheduler.loop import Scheduler
from shoal.server.scheduler.model import Avoided, Hold
from shoal.testing.server import IdleEngine, add_person, add_source, make_context

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
NOW = 1000.0


def away_from(*places, until=NOW + 60):
    return Avoided(frozenset(places), until)


def never(*places, until=0.0):
    """Devices that failed the job; the pause is over."""
    return Avoided(frozenset(places), until, never=frozenset(places))


def gpus(slots, used=(), name="a"):
    return machine(slots, used, name=name, kind="cuda")


def placed(machines, *queue, now=NOW):
    return dict(decide(seen(machines, list(queue), now=now)).starts)


def test_another_machine_comes_first_though_the_one_that_failed_fits_better():
    pool = [machine(1, name="a"), machine(8, name="b")]
    assert placed(pool, job("j")) == {"j": [Placement("a", (0,))]}
    assert placed(pool, job("j", avoided=away_from(("a", 0)))) == {"j": [Placement("b", (0,))]}
    assert placed(pool, job("j", avoided=away_from(("a", 0), until=0.0))) == {"j": [Placement("b", (0,))]}


def test_while_other_machines_are_busy_it_waits_and_then_takes_what_there_is():
    pool = [machine(2, name="a"), machine(2, {0, 1}, name="b")]
    waiting = job("j", avoided=away_from(("a", 0)))
    assert placed(pool, waiting) == {}
    assert placed(pool, waiting, now=NOW + 61) == {"j": [Placement("a", (1,))]}


def test_on_the_only_machine_other_slots_come_first():
    waiting = job("j", accels=2, avoided=away_from(("a", 0)))
    assert placed([machine(4, name="a")], waiting) == {"j": [Placement("a", (1, 2))]}
    assert placed([machine(4, {1, 2}, name="a")], waiting) == {}
    assert placed([machine(4, {1, 2}, name="a")], waiting, now=NOW + 61) == {"j": [Placement("a", (3, 0))]}


def test_the_only_slot_is_used_again_after_a_pause_and_others_may_use_it_meanwhile():
    pool, waiting = [machine(1, name="a")], job("j", avoided=away_from(("a", 0)))
    snapshot = seen(pool, [waiting], now=NOW)
    decision = decide(snapshot)
    assert decision.starts == [] and decision.holds == {"j": Hold.PAUSE} and decision.reserved == []
    assert "in 60 s" in decision.waiting["j"]
    assert placed(pool, waiting, job("k", at=5.0)) == {"k": [Placement("a", (0,))]}
    assert placed(pool, waiting, now=NOW + 61) == {"j": [Placement("a", (0,))]}
    assert explain_wait(snapshot, "j").hold is Hold.PAUSE
    assert forecast(snapshot, "j").starts_in_s == pytest.approx(60)


def test_a_gang_that_needs_every_machine_comes_back_to_the_one_that_failed():
    pool = [machine(1, name="a"), machine(1, name="b")]
    gang = job("j", nodes=2, avoided=away_from(("a", 0)))
    assert placed(pool, gang) == {}
    assert set(placed(pool, gang, now=NOW + 61)) == {"j"}


def test_a_job_never_goes_back_to_a_device_that_failed_it():
    hurt = job("j", accels=2, avoided=never(("a", 0)))
    assert placed([gpus(4)], hurt) == {"j": [Placement("a", (1, 2))]}
    assert placed([gpus(4, {1, 2})], hurt) == {}, "only slot 3 and the one that failed are free"
    decision = decide(seen([gpus(2)], [hurt, job("k", at=5.0)], now=NOW))
    assert decision.holds == {"j": Hold.MACHINES} and decision.reserved == []
    assert "has not failed before (it failed on a: 0)" in decision.waiting["j"], decision.waiting["j"]
    assert dict(decision.starts) == {"k": [Placement("a", (0,))]}, "others are not held up, and may use that device"


def test_a_job_all_of_whose_devices_failed_it_waits_also_during_the_pause_and_does_not_fall_back_to_cpus():
    hurt = job("j", avoided=never(("a", 0), until=NOW + 60))
    view = seen([gpus(1), machine(4, name="local")], [hurt], now=NOW)
    assert decide(view).holds == {"j": Hold.MACHINES} and decide(view).starts == []
    assert explain_wait(view, "j").hold is Hold.MACHINES


def test_slots_of_a_cpu_are_not_devices():
    assert placed([machine(1, name="a")], job("j", avoided=never(("a", 0)))) == {"j": [Placement("a", (0,))]}


def test_nobody_makes_way_on_a_device_that_the_job_will_not_use():
    hurt = job("j", priority=1, avoided=never(("a", 0)))
    on_it = [running("r", {"a": 1}), running("s", {"a": 1}, priority=1)]
    assert decide(seen([gpus(2, {0, 1})], [hurt], on_it, now=NOW)).preempts == {}
    elsewhere = [*on_it, running("t", {"b": 1})]
    assert set(decide(seen([gpus(2, {0, 1}), gpus(1, {0}, "b")], [hurt], elsewhere, now=NOW)).preempts) == {"t"}


def test_the_device_of_the_rank_that_failed_is_never_used_again_and_its_neighbours_are():
    [two] = [avoided([Ended(1, "a", [4, 5], ECC, 1.0, index=1, rank=3)])]
    assert two.never == {("a", 5)} and two.slots == {("a", 4), ("a", 5)}
    assert avoided([Ended(1, "a", [4, 5], ECC, 1.0)]).never == frozenset(), "nobody knows which of the two it was"
    closed = "RuntimeError: Connection closed by peer"
    assert avoided([Ended(1, "a", [4], closed, 1.0, index=0, rank=0)]).never == frozenset()


def test_the_pause_doubles_up_to_a_limit_and_starts_small_again_after_long():
    def after(*moments):
        found = avoided(Ended(i, "a", [0], ECC, at) for i, at in enumerate(moments))
        return found.until - moments[-1]

    assert after(100.0) == PAUSE_LEAST_S
    assert after(100.0, 200.0) == 2 * PAUSE_LEAST_S
    assert after(*(100.0 + i for i in range(30))) == PAUSE_MOST_S
    assert after(100.0, 100_000.0) == PAUSE_LEAST_S


def test_an_error_of_the_job_itself_avoids_nothing():
    assert avoided([Ended(1, "a", [0], "torch.OutOfMemoryError: CUDA out of memory", 1.0)]) is None
    assert avoided([Ended(1, "a", [0], "killed by SIGKILL (out of memory?)", 1.0)]) is None


def test_only_the_place_of_the_cause_is_avoided_and_not_those_of_its_consequences():
    closed = "RuntimeError: Connection closed by peer"
    found = avoided([Ended(1, "a", [0], closed, 1.0), Ended(1, "b", [0], ECC, 2.0), Ended(2, "c", [0], closed, 3.0)])
    assert found.machines == {"b", "c"}
    assert avoided([Ended(1, "a", [0], closed, 1.0), Ended(1, "b", [0], "killed by SIGKILL", 2.0)]) is None


class TwoMachines(IdleEngine):
    def capacity(self):
        return [Machine(name=name, kind="cpu", slots=1, home="/srv", url="http://10.0.0.1:1") for name in ("a", "b")]

    def status(self, attempt_id, node):
        return AgentState.ALIVE

    def start(self, gang):
        self.exclude = gang.exclude


@pytest.fixture
def engine():
    return TwoMachines()


@pytest.fixture
def ctx(tmp_path, engine):
    context = make_context(tmp_path, engine=engine)
    yield context
    context.db.close()


def submit(ctx, **wishes):
    person = add_person(ctx, "a@b.c")
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, person), **wishes)
    return jobs.submit(ctx, person.access(), spec).id, person


def newest(ctx, job_id):
    with ctx.db.read() as session:
        attempt = session.scalar(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number.desc()))
        return attempt, session.scalars(select(Node).where(Node.attempt_id == attempt.id)).all()


def fail(ctx, attempt, node, reason):
    who = AgentIdentity(attempt.job_id, attempt.id, attempt.number, node)
    report = {"state": NodeState.EXITED, "exit_code": 1, "failed_rank": node, "reason": reason}
    agents.beat(ctx, who, agents.BeatRequest(**report))


def test_after_an_ecc_error_the_next_attempt_runs_on_another_machine(ctx, engine):
    job_id, _ = submit(ctx)
    scheduler = Scheduler(ctx, "http://nowhere")
    scheduler.pass_once()
    attempt, [first] = newest(ctx, job_id)
    stderr = f'Traceback (most recent call last):\n  File "t.py", line 1\n{ECC}\nCUDA kernel errors might be\n'
    fail(ctx, attempt, 0, explain(1, stderr))
    scheduler.pass_once()
    attempt, [second] = newest(ctx, job_id)
    assert attempt.number == 2 and second.machine != first.machine
    assert first.machine in engine.exclude


def test_the_error_of_a_peer_does_not_hide_the_jobs_own(ctx):
    job_id, person = submit(ctx, min_nodes=2, max_nodes=2)
    Scheduler(ctx, "http://nowhere").pass_once()
    attempt, _ = newest(ctx, job_id)
    fail(ctx, attempt, 0, "RuntimeError: Connection closed by peer [10.0.0.2]:4821")
    fail(ctx, attempt, 1, "ValueError: bad lr")
    view = jobs.get(ctx, person.access(), job_id)
    assert view.status is JobState.FAILED and "ValueError: bad lr" in view.reason
