"""An agent that is gone is spoken for by its salvager; on a machine that is gone too there is nobody to wait for."""

import pytest

from shoal.core.jobs import JobSpec
from shoal.core.states import NodeState
from shoal.engines.base import AgentState, Machine
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt, Node
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import IdleEngine, add_person, add_source, make_context


class FarEngine(IdleEngine):
    """One machine elsewhere, and what is said of it."""

    machine_state, agent_state = "up", AgentState.ALIVE

    def __init__(self):
        super().__init__()
        self.salvaged = []

    def capacity(self):
        return [
            Machine(name="far", kind="cpu", slots=1, state=self.machine_state, home="/srv", url="http://10.0.0.1:1")
        ]

    def status(self, attempt_id, node):
        return self.agent_state

    def salvage(self, attempt_id, node):
        self.salvaged.append((attempt_id, node))


@pytest.fixture
def far():
    return FarEngine()


@pytest.fixture
def ctx(tmp_path, far):
    context = make_context(tmp_path, engine=far)
    person = add_person(context, "a@b.c")
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(context, person))
    jobs.submit(context, person.access(), spec)
    yield context
    context.db.close()


@pytest.fixture
def look(ctx):
    """A pass of the scheduler; then how the first attempt's node is."""
    scheduler = Scheduler(ctx, "http://nowhere")

    def once():
        scheduler.pass_once()
        with ctx.db.read() as session:
            attempt = session.query(Attempt).filter(Attempt.number == 1).one()
            return session.get_one(Node, (attempt.id, 0))

    return once


def test_on_a_machine_that_is_there_the_salvager_is_waited_for(look, far):
    assert look().state == NodeState.PENDING
    far.agent_state = AgentState.GONE
    node = look()
    assert node.state == NodeState.PENDING
    assert far.salvaged == [(node.attempt_id, 0)]


def test_on_a_lost_machine_it_is_decided_at_once_and_the_last_words_are_asked_for_later(look, far):
    look()
    far.agent_state, far.machine_state = AgentState.GONE, "lost"
    node = look()
    assert (node.state, node.reason) == (NodeState.LOST, "its machine 'far' was lost")
    assert far.salvaged == [(node.attempt_id, 0)]


def test_a_lost_machine_alone_says_nothing_of_an_agent_that_still_speaks(look, far):
    look()
    far.machine_state = "lost"
    assert look().state == NodeState.PENDING
