"""Silence that the server caused itself is excused: after a stall no node is lost, and no job counts as hung, because of it."""

import asyncio
import time

import pytest

from shoal.core.agents import BeatRequest
from shoal.core.jobs import JobSpec
from shoal.core.lag import TOLERANCE_S, Lag
from shoal.core.states import NodeState
from shoal.engines.base import AgentState
from shoal.server.jobs import agents
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt, Event, Node
from shoal.server.policy import AgentIdentity
from shoal.server.run import _Server
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import IdleEngine, add_person, add_source, make_context


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_without_ticks_the_clock_is_the_monotonic_one(clock):
    lag = Lag(clock)
    clock.sleep(500)
    assert lag.awake_s() == 1500.0
    assert Lag().awake_s() == pytest.approx(time.monotonic(), abs=60)


def test_a_stall_stands_still_while_it_lasts_and_after_it(clock):
    lag = Lag(clock)
    lag.tick()
    clock.sleep(100)
    during = lag.awake_s()
    assert during == 1000.0 + TOLERANCE_S
    lag.tick()
    assert lag.awake_s() == during
    for _ in range(50):
        clock.sleep(0.1)
        lag.tick()
    assert lag.awake_s() == pytest.approx(during + 5.0)


class TwoMachines(IdleEngine):
    def status(self, attempt_id, node):
        return AgentState.ALIVE


@pytest.fixture
def ctx(tmp_path, clock):
    context = make_context(tmp_path, engine=TwoMachines())
    context.live.lag = Lag(clock)
    context.live.lag.tick()
    yield context
    context.db.close()


@pytest.fixture
def node(ctx):
    """A node whose agent has just joined; returns its state after a pass of the scheduler."""
    person = add_person(ctx, "a@b.c")
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, person))
    jobs.submit(ctx, person.access(), spec)
    scheduler = Scheduler(ctx, "http://nowhere")
    scheduler.pass_once()
    with ctx.db.read() as session:
        attempt = session.query(Attempt).one()
    started = {"state": NodeState.RUNNING.value}
    ctx.db.write(lambda s: s.query(Node).update(started) and None)
    ctx.live.beat(attempt.id, 0)

    def state():
        scheduler.pass_once()
        with ctx.db.read() as session:
            return session.get_one(Node, (attempt.id, 0)).state

    state.attempt = attempt
    return state


def test_a_node_is_not_lost_because_the_server_stood_still(ctx, clock, node):
    clock.sleep(10 * ctx.settings.node_timeout_s)
    assert node() == NodeState.RUNNING  # the scheduler may run before the event loop does
    ctx.live.lag.tick()
    assert node() == NodeState.RUNNING


def test_a_node_that_stays_silent_is_lost_all_the_same(ctx, clock, node):
    for _ in range(int(10 * ctx.settings.node_timeout_s)):
        clock.sleep(0.5)
        ctx.live.lag.tick()
    assert node() == NodeState.LOST


def test_a_job_is_not_quiet_because_the_server_stood_still(ctx, clock, node):
    ctx.commands.record_progress(node.attempt.id)
    clock.sleep(7200)
    assert ctx.commands.quiet_s(node.attempt.id) <= TOLERANCE_S
    ctx.live.lag.tick()
    assert ctx.commands.quiet_s(node.attempt.id) <= TOLERANCE_S


def test_an_agent_whose_join_the_database_cannot_take_is_heard_nevertheless(ctx, clock, node, monkeypatch):
    def locked(*_, **__):
        raise OSError("locked")

    for _ in range(100):
        clock.sleep(0.5)
        ctx.live.lag.tick()
    monkeypatch.setattr(ctx.db, "write", locked)
    who = AgentIdentity(node.attempt.job_id, node.attempt.id, 1, 0)
    with pytest.raises(OSError, match="locked"):
        agents.join(ctx, who, None)
    assert ctx.live.silence_s(node.attempt.id, 0) == 0.0


def pass_time(ctx, clock, seconds):
    for _ in range(int(seconds * 2)):
        clock.sleep(0.5)
        ctx.live.lag.tick()


def beat(ctx, node, stalled_s):
    who = AgentIdentity(node.attempt.job_id, node.attempt.id, 1, 0)
    agents.beat(ctx, who, BeatRequest(state=NodeState.RUNNING, stalled_s=stalled_s))


def test_a_node_whose_machine_stands_still_now_and_then_gets_more_time_and_the_job_says_so(ctx, clock, node):
    timeout_s = ctx.settings.node_timeout_s
    beat(ctx, node, 0.0)
    pass_time(ctx, clock, 8)
    beat(ctx, node, 8.0)
    pass_time(ctx, clock, timeout_s + 20)
    assert node() == NodeState.RUNNING
    beat(ctx, node, 8.0 + timeout_s + 20)  # that long it stood still this time
    pass_time(ctx, clock, 2 * timeout_s - 2)
    assert node() == NodeState.RUNNING
    pass_time(ctx, clock, 5)
    assert node() == NodeState.LOST  # never more than twice the timeout
    with ctx.db.read() as session:
        said = [event.message for event in session.query(Event).filter(Event.kind == "warning")]
    assert said == [
        "the machine of node 0 stood still for 8 s (overloaded or suspended); this is not counted against it"
    ]


def test_a_machine_that_has_not_stood_still_for_long_gets_no_more_time(ctx, clock, node):
    beat(ctx, node, 0.0)
    beat(ctx, node, 20.0)
    for _ in range(61):
        pass_time(ctx, clock, 10)
        beat(ctx, node, 20.0)
    pass_time(ctx, clock, ctx.settings.node_timeout_s + 2)
    assert node() == NodeState.LOST


def test_what_stood_still_before_the_server_started_does_not_count(ctx, clock, node):
    beat(ctx, node, 500.0)
    pass_time(ctx, clock, ctx.settings.node_timeout_s + 2)
    assert node() == NodeState.LOST


def test_a_job_is_not_quiet_because_its_machine_stood_still(ctx, clock, node):
    beat(ctx, node, 0.0)
    ctx.commands.record_progress(node.attempt.id)
    pass_time(ctx, clock, 100)
    beat(ctx, node, 90.0)
    assert ctx.commands.quiet_s(node.attempt.id) == pytest.approx(10, abs=2)
    beat(ctx, node, 5000.0)
    assert ctx.commands.quiet_s(node.attempt.id) == 0


def test_the_event_loop_of_the_server_ticks(clock):
    lag = Lag(clock)
    server = _Server(None, None, lag, on_ready=lambda: None, on_exit=lambda: None)
    assert asyncio.run(server.on_tick(1)) is False
    clock.sleep(100)
    assert lag.awake_s() == 1000.0 + TOLERANCE_S
