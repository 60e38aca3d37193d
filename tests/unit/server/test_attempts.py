"""An attempt's life under duplicated, reordered and contradictory reports: only legal states, no slot used twice."""

import itertools
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from sqlalchemy import select

from shoal.core.agents import BeatRequest, JoinRequest
from shoal.core.artifacts import Manifest
from shoal.core.checkpoints import CheckpointCommit
from shoal.core.errors import Fenced, NotAllowedNow
from shoal.core.jobs import JobSpec, Progress
from shoal.core.settings import ServerSettings
from shoal.core.states import JobState, NodeState
from shoal.engines.base import AgentState
from shoal.server.artifacts import checkpoints
from shoal.server.jobs import agents
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt, Event, Job, Node
from shoal.server.policy import AgentIdentity
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import IdleEngine, add_person, add_source, make_context

SLOTS = 4


class RecordingEngine(IdleEngine):
    """Starts nothing, and says of every agent what the test wants said."""

    def __init__(self):
        super().__init__(SLOTS)
        self.gone = set()

    def status(self, attempt_id, node):
        return AgentState.UNKNOWN if (attempt_id, node) in self.gone else AgentState.ALIVE


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


class World:
    """A server in this process, and the voices of agents."""

    def __init__(self, home):
        self.engine = RecordingEngine()
        self.ctx = make_context(Path(home), engine=self.engine)
        self.person = add_person(self.ctx, "a@b.c")
        self.source = add_source(self.ctx, self.person)
        self.scheduler = Scheduler(self.ctx, "http://nowhere")
        self.names = itertools.count()

    def close(self):
        self.ctx.db.close()

    def submit(self, **wishes):
        spec = JobSpec(name=f"j{next(self.names)}", entry=["train.py"], source_id=self.source, **wishes)
        return jobs.submit(self.ctx, self.person.access(), spec).id

    def stop(self, job_id):
        jobs.stop(self.ctx, self.person.access(), job_id)

    def view(self, job_id):
        return jobs.get(self.ctx, self.person.access(), job_id)

    def attempt(self, job_id):
        with self.ctx.db.read() as session:
            return session.scalar(
                select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number.desc()).limit(1)
            )

    def who(self, attempt, node):
        return AgentIdentity(attempt.job_id, attempt.id, attempt.number, node)

    def join(self, attempt, node):
        return agents.join(
            self.ctx,
            self.who(attempt, node),
            JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000 + node),
        )

    def beat(self, attempt, node, **report):
        return agents.beat(self.ctx, self.who(attempt, node), BeatRequest(**report))

    def run(self, job_id):
        """Bring a queued job to running; its attempt."""
        self.scheduler.pass_once()
        attempt = self.attempt(job_id)
        for node in range(attempt.num_nodes):
            self.join(attempt, node)
        for node in range(attempt.num_nodes):
            self.beat(attempt, node, state=NodeState.RUNNING)
        return attempt


def test_a_gang_learns_its_meeting_place_only_when_all_have_joined(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    world.scheduler.pass_once()
    attempt = world.attempt(job)
    assert not world.join(attempt, 1).ready
    reply = world.join(attempt, 0)
    assert reply.ready
    assert (reply.master_addr, reply.master_port) == ("127.0.0.1", 20000)
    assert world.join(attempt, 1).ready


def test_a_job_succeeds_when_all_its_nodes_have(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    assert world.view(job).status is JobState.RUNNING
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=0)
    assert world.view(job).status is JobState.RUNNING
    world.beat(attempt, 1, state=NodeState.EXITED, exit_code=0)
    assert world.view(job).status is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "its agent could not join the server: Unknown agent token.",
            "could not join the server: Unknown agent token.",
        ),
        ("RuntimeError: of the script", "its agent died"),
        (None, "its agent died"),
    ],
)
def test_an_agent_the_server_turned_away_did_not_die(world, said, told):
    world.ctx.settings = ServerSettings(start_timeout_s=0.0)
    job = world.submit(max_restarts=0)
    world.scheduler.pass_once()
    world.engine.status = lambda attempt_id, node: AgentState.GONE
    world.engine.last_word = lambda attempt_id, node: said
    world.scheduler.pass_once()
    assert told in world.view(job).reason


def test_a_job_whose_secret_cannot_be_read_says_so_and_is_not_tried_again(world):
    job = world.submit()
    world.scheduler.pass_once()
    reason = "its agent could not join the server: The secret 'wandb' cannot be decrypted."
    world.beat(world.attempt(job), 0, state=NodeState.EXITED, exit_code=1, reason=reason, final=True)
    view = world.view(job)
    assert view.status is JobState.FAILED and f"{reason} (trying again would not help)" in view.events[-1].message


def test_one_failing_node_fences_the_rest_and_the_next_attempt_waits_for_them(world):
    job = world.submit(min_nodes=2, max_nodes=2, accels=2)
    attempt = world.run(job)
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=-9, failed_rank=0, reason="killed by SIGKILL")
    assert world.beat(attempt, 1, state=NodeState.RUNNING).fenced
    world.scheduler.pass_once()
    assert world.attempt(job).id == attempt.id
    world.beat(attempt, 1, state=NodeState.EXITED, exit_code=-9, told=True)
    world.scheduler.pass_once()
    assert world.attempt(job).number == 2
    assert world.view(job).status is JobState.STARTING


def test_the_worker_killed_by_a_signal_is_blamed_even_if_its_peer_spoke_first(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    world.beat(
        attempt, 0, state=NodeState.EXITED, exit_code=1, failed_rank=0, reason="RuntimeError: Connection closed by peer"
    )
    world.beat(attempt, 1, state=NodeState.EXITED, exit_code=-9, failed_rank=1, reason="killed by SIGKILL")
    view = world.view(job)
    assert "rank 1 on node 1: killed by SIGKILL" in view.attempt_list[0].reason
    assert view.status is JobState.QUEUED


def test_a_fenced_attempt_cannot_join_or_finish(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=-9)
    with pytest.raises(Fenced):
        world.join(attempt, 1)
    world.beat(attempt, 1, state=NodeState.EXITED, exit_code=0)
    assert world.view(job).status is JobState.QUEUED


def test_a_job_stopped_while_running_ends_stopped_whatever_its_workers_say(world):
    job = world.submit()
    attempt = world.run(job)
    world.stop(job)
    assert world.beat(attempt, 0, state=NodeState.RUNNING).stop
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=1, told=True)
    view = world.view(job)
    assert view.status is JobState.STOPPED
    assert "stopped by a@b.c" in view.reason


def test_all_nodes_of_a_gang_hear_of_a_stop_at_the_same_moment(world, monkeypatch):
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    world.stop(job)
    with world.ctx.db.read() as session:
        asked_at = session.get_one(Job, job).stop_requested_at
    monkeypatch.setattr(agents, "utcnow", lambda: asked_at)
    early = world.beat(attempt, 0, state=NodeState.RUNNING)
    monkeypatch.setattr(agents, "utcnow", lambda: asked_at + timedelta(seconds=0.9))
    late = world.beat(attempt, 1, state=NodeState.RUNNING)
    assert (early.stop, late.stop) == (False, False)
    assert early.beat_in_s == pytest.approx(0.9 + late.beat_in_s, abs=0.001) and late.beat_in_s > 0
    monkeypatch.setattr(agents, "utcnow", lambda: asked_at + timedelta(seconds=0.9 + late.beat_in_s))
    assert all(world.beat(attempt, node, state=NodeState.RUNNING).stop for node in (0, 1))


def test_a_node_that_fails_while_its_job_is_stopped_takes_nobody_with_it(world):
    """Its peers have left, and it had not heard of the stop yet; another may be saving."""
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    world.stop(job)
    world.beat(attempt, 1, state=NodeState.EXITED, exit_code=1, failed_rank=1, reason="Connection closed by peer")
    assert not world.beat(attempt, 0, state=NodeState.RUNNING).fenced
    last = CheckpointCommit(name="last", manifest=Manifest(files=[]))
    assert checkpoints.capture(world.ctx, world.who(attempt, 0), last).checkpoint
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=143, told=True)
    assert world.view(job).status is JobState.STOPPED


def test_a_node_that_its_machine_told_to_end_is_lost_even_if_its_workers_left_well(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=0, told=True)
    assert world.beat(attempt, 1, state=NodeState.RUNNING).fenced
    world.beat(attempt, 1, state=NodeState.EXITED, exit_code=0)
    view = world.view(job)
    assert view.status is JobState.QUEUED
    assert view.attempt_list[0].reason == "node 0: its machine stopped it (SIGTERM)"


def test_a_lost_node_is_decided_and_the_job_tried_again(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    attempt = world.run(job)
    world.engine.gone = {(attempt.id, 0), (attempt.id, 1)}
    world.scheduler.pass_once()
    view = world.view(job)
    assert view.attempt_list[0].result == "failed"
    assert [e.kind for e in view.events][3] == "node_lost"
    world.scheduler.pass_once()
    assert world.attempt(job).number == 2


def test_progress_between_failures_renews_the_budget(world):
    job = world.submit(max_restarts=1)
    for step in (10, 20, 30):
        attempt = world.run(job)
        agents._progress_at.clear()
        world.beat(attempt, 0, state=NodeState.RUNNING, progress=Progress(step=step, total=100))
        world.beat(attempt, 0, state=NodeState.EXITED, exit_code=-9)
        assert world.view(job).status is JobState.QUEUED
    attempt = world.run(job)
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=-9)
    assert world.view(job).status is JobState.FAILED
    assert world.view(job).exit_code == 137


@pytest.mark.parametrize(
    ("reason", "progress"),
    [
        ("exit code 1", Progress(step=1, total=4, fraction=0.25, source="sdk")),
        ("ValueError: cannot draw", Progress(step=4, total=4, fraction=1.0, source="sdk")),
    ],
)
def test_a_script_that_exits_with_an_error_or_fails_after_its_last_step_is_failed_below_100_percent_and_not_repeated(
    world, reason, progress
):
    job = world.submit(max_restarts=3)
    attempt = world.run(job)
    ended = {"state": NodeState.EXITED, "exit_code": 1, "failed_rank": 0, "reason": reason, "final": True}
    world.beat(attempt, 0, progress=progress, **ended)
    view = world.view(job)
    assert (view.status, view.exit_code, view.attempts) == (JobState.FAILED, 1, 1)
    assert view.progress.fraction < 1


class AttemptMachine(RuleBasedStateMachine):
    """Everything that can reach the server about attempts, in any order and any number of times."""

    job_ids = Bundle("job_ids")
    voices = Bundle("voices")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(self.folder.name)
        self.ended = {}

    def teardown(self):
        self.world.close()
        self.folder.cleanup()

    @rule(target=job_ids, nodes=st.integers(1, 2), accels=st.integers(1, 2), restarts=st.integers(0, 2))
    def submit(self, nodes, accels, restarts):
        return self.world.submit(min_nodes=nodes, max_nodes=nodes, accels=accels, max_restarts=restarts)

    @rule(target=voices)
    def schedule(self):
        with self.world.ctx.db.read() as session:
            before = set(session.scalars(select(Attempt.id)))
        self.world.scheduler.pass_once()
        with self.world.ctx.db.read() as session:
            new = [a for a in session.scalars(select(Attempt)) if a.id not in before]
        return multiple(*((a, n) for a in new for n in range(a.num_nodes)))

    @rule(voice=voices)
    def join(self, voice):
        try:
            self.world.join(*voice)
        except Fenced:
            pass
        except NotAllowedNow:  # it was heard before it joined
            with self.world.ctx.db.read() as session:
                node = session.get_one(Node, (voice[0].id, voice[1]))
            assert node.address is None and node.state != NodeState.PENDING

    @rule(voice=voices, state=st.sampled_from([NodeState.PREPARING, NodeState.RUNNING]))
    def beat(self, voice, state):
        self.world.beat(*voice, state=state)

    @rule(voice=voices, code=st.sampled_from([0, 1, -9, None]), told=st.booleans(), final=st.booleans())
    def end(self, voice, code, told, final):
        self.world.beat(*voice, state=NodeState.EXITED, exit_code=code, told=told, final=final)

    @rule(voice=voices)
    def lose(self, voice):
        self.world.engine.gone.add((voice[0].id, voice[1]))

    @rule(job=job_ids)
    def stop(self, job):
        self.world.stop(job)

    @invariant()
    def no_slot_is_used_twice(self):
        with self.world.ctx.db.read() as session:
            live = select(Node).where(Node.state.not_in(["exited", "lost"]))
            slots = [(n.machine, s) for n in session.scalars(live) for s in n.slots]
        assert len(slots) == len(set(slots))
        assert all(s < SLOTS for _, s in slots)

    @invariant()
    def every_job_is_in_one_legal_state_and_stays_where_it_ended(self):
        with self.world.ctx.db.read() as session:
            for job in session.scalars(select(Job)):
                state = JobState(job.state)
                open_attempts = [
                    a for a in session.scalars(select(Attempt).where(Attempt.job_id == job.id)) if a.state != "ended"
                ]
                assert len(open_attempts) == (state in (JobState.STARTING, JobState.RUNNING))
                assert (job.ended_at is not None) == state.is_terminal
                assert self.ended.setdefault(job.id, state) == state if state.is_terminal else job.id not in self.ended
                told = session.scalars(select(Event.kind).where(Event.job_id == job.id).order_by(Event.seq))
                moves = [JobState(kind) for kind in told if kind in set(JobState)]
                assert all(a.may_become(b) for a, b in itertools.pairwise(moves))
                assert moves[-1] is state


AttemptMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("SHOAL_ROUNDS", "3")) * 2,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAttemptMachine = AttemptMachine.TestCase
