"""Jobs of a range of nodes as machines go and come, and what a node that was given up may still say."""

from dataclasses import replace

import pytest
from metriclines import Sender
from queueworld import TwoMachines, World

from shoal.core.artifacts import Manifest
from shoal.core.checkpoints import CheckpointCommit
from shoal.core.errors import Fenced
from shoal.core.jobs import JobSpec
from shoal.core.settings import ServerSettings
from shoal.core.states import JobState, NodeState
from shoal.engines.base import AgentState
from shoal.server.artifacts import checkpoints
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Node
from shoal.server.policy import AgentIdentity, hash_token
from shoal.server.queue import service as queue


class Pool(TwoMachines):
    """Machines that can be lost, and come back."""

    def __init__(self):
        super().__init__(slots=1)
        self.lost = set()

    def capacity(self):
        return [replace(m, state="lost" if m.name in self.lost else "up") for m in super().capacity()]


class Elastic(World):
    def __init__(self, home):
        self.pool = Pool()
        super().__init__(home, self.pool)
        self.ctx.settings = ServerSettings(queue_grow_s=0.0)

    def who(self, job, node):
        attempt = self.attempt(job)
        return AgentIdentity(job, attempt.id, attempt.number, node)

    def machines(self, job):
        return [node.machine for node in self.view(job).attempt_list[-1].nodes]

    def fall_silent(self, job, node):
        """Let a node be silent for longer than the node timeout while its engine reports nothing wrong."""
        self.ctx.live._beats[self.attempt(job).id, node] -= 1000

    def lose(self, job, node, machine):
        """Its machine is gone, and the server has decided on it; the other nodes have obeyed."""
        self.pool.lost.add(machine)
        self.fall_silent(job, node)
        self.scheduler.pass_once()
        for other in range(self.attempt(job).num_nodes):
            if other != node:
                self.beat(job, other, state=NodeState.EXITED, exit_code=-9, told=True)

    def save(self, job, node=0):
        request = CheckpointCommit(name=f"step-{len(self.view(job).events)}", manifest=Manifest(files=[]))
        return checkpoints.capture(self.ctx, self.who(job, node), request)


@pytest.fixture
def world(tmp_path):
    world = Elastic(tmp_path)
    yield world
    world.ctx.db.close()


def test_a_lost_machine_costs_an_attempt_and_the_next_one_runs_on_what_is_left(world):
    job = world.submit("e", min_nodes=1, max_nodes=2)
    world.tick()
    assert world.machines(job) == ["x", "y"]
    world.lose(job, 1, "y")
    world.tick()
    view = world.view(job)
    assert (view.status, view.attempts, world.machines(job)) == (JobState.RUNNING, 2, ["x"])
    assert "node 1: no heartbeat from its agent for 30 s" in view.attempt_list[0].reason


def test_with_fewer_than_the_smallest_number_it_waits_and_says_for_what(world):
    job = world.submit("e", min_nodes=2, max_nodes=2)
    world.tick()
    world.lose(job, 1, "y")
    world.tick()
    assert world.view(job).waiting == "needs 2 × 1 slots: more than all machines that are up now (y is lost)"
    told = queue.why(world.ctx, world.anna.access(), job)
    assert (told.reason, told.suggestion.command) == ("machines", "shoal training change e --nodes 1:2")
    world.pool.lost.clear()
    world.tick()
    assert (world.view(job).status, world.machines(job)) == (JobState.RUNNING, ["x", "y"])


def test_a_machine_whose_node_fell_silent_is_not_used_again_at_once_though_it_looks_well(world):
    job = world.submit("e", min_nodes=1, max_nodes=2)
    world.tick()
    world.fall_silent(job, 1)
    world.scheduler.pass_once()
    world.beat(job, 0, state=NodeState.EXITED, exit_code=-9, told=True)
    world.tick()
    assert world.machines(job) == ["x"]
    alone = world.submit("alone", exclude=["x"])
    world.tick()
    assert "more than all machines" in world.view(alone).waiting
    world.pool.lost.add("y")  # its engine has noticed
    world.tick()
    world.pool.lost.clear()
    world.tick()
    assert world.machines(alone) == ["y"]


def test_the_only_machine_is_used_whatever_happened_on_it(world):
    world.pool.names = ("x",)
    job = world.submit("e")
    world.tick()
    world.fall_silent(job, 0)
    world.scheduler.pass_once()
    world.tick()
    assert (world.view(job).attempts, world.machines(job)) == (2, ["x"])


def test_a_job_that_grows_saves_first_and_goes_on_with_more_nodes(world):
    world.pool.lost.add("y")
    job = world.submit("e", min_nodes=1, max_nodes=2, grow=True, max_restarts=0)
    world.tick()
    world.save(job)
    world.tick()
    assert world.machines(job) == ["x"] and not world.beat(job, state=NodeState.RUNNING).commands
    world.pool.lost.clear()
    world.tick()
    [command] = world.beat(job, state=NodeState.RUNNING).commands
    assert command["do"] == "save"
    world.tick()
    assert not world.beat(job, state=NodeState.RUNNING).stop, "not before it has saved"
    world.save(job)
    world.tick()
    assert world.beat(job, state=NodeState.RUNNING).stop
    world.beat(job, state=NodeState.EXITED, exit_code=143, told=True)
    world.tick()
    view = world.view(job)
    assert (view.status, world.machines(job)) == (JobState.RUNNING, ["x", "y"])
    told = [e.message for e in view.events if e.kind in ("growing", "preempted")]
    assert told == [
        "there is room for 2 nodes: it grows at its next checkpoint",
        "saved, to continue with 2 nodes instead of 1",
    ]


def test_it_does_not_grow_before_its_attempt_has_run_for_a_while_nor_once_another_waits(world):
    world.ctx.settings = ServerSettings(queue_grow_s=3600.0)
    world.pool.lost.add("y")
    job = world.submit("e", min_nodes=1, max_nodes=2, grow=True)
    world.tick()
    world.pool.lost.clear()
    world.tick()
    assert not world.beat(job, state=NodeState.RUNNING).commands
    world.ctx.settings = ServerSettings(queue_grow_s=0.0)
    world.submit("other", min_nodes=2, max_nodes=2)
    world.tick()
    assert not world.beat(job, state=NodeState.RUNNING).commands


def test_growing_needs_a_range_and_is_forgotten_with_it(world):
    with pytest.raises(ValueError, match="--grow needs a range of nodes, such as --nodes 2:4"):
        JobSpec(name="e", entry=["train.py"], source_id="s", min_nodes=2, max_nodes=2, grow=True)
    world.pool.lost |= {"x", "y"}
    job = world.submit("e", min_nodes=1, max_nodes=2, grow=True)
    changed = world.as_anna.request("PATCH", f"/workspaces/default/jobs/{job}", json={"min_nodes": 2, "max_nodes": 2})
    assert changed.status_code == 200 and changed.json()["spec"]["grow"] is False


def test_a_node_given_up_commits_nothing_made_afterwards_and_may_say_what_it_had_to_say(world):
    """P5: it was frozen, say, and thaws when another has done its work."""
    job = world.submit("e", min_nodes=1, max_nodes=2)
    world.tick()
    zombie, token = world.who(job, 1), "shoala_zombie"

    def know(session):
        session.get_one(Node, (zombie.attempt_id, 1)).token_hash = hash_token(token)

    world.ctx.db.write(know)
    sender = Sender(world.app, token, rank=1)
    early = {"t": 1000.0, "m": "before"}
    assert sender.post(0, [early], stream="log").status_code == 200
    world.lose(job, 1, "y")
    world.tick()
    assert world.view(job).attempts == 2
    late = {"t": 9e9, "m": "after"}
    assert sender.post(1, [{"t": 1001.0, "m": "still before"}], stream="log").status_code == 200
    assert sender.post(2, [{"t": 1002.0, "m": "the last"}, late], stream="log").status_code == 200
    for stream, record in (("log", late), ("system", late), ("metric", {"k": "s", "i": 5, "v": {"loss": 1}, **late})):
        refused = sender.post(4 if stream == "log" else 0, [record], stream=stream)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "fenced")
    with pytest.raises(Fenced):
        checkpoints.capture(world.ctx, zombie, CheckpointCommit(name="late", manifest=Manifest(files=[])))
    reply = world.beat_as(zombie, state=NodeState.RUNNING, progress={"step": 999})
    assert reply.fenced, "which ends it and its workers"
    texts = [line["text"] for line in world.as_anna.get(f"/workspaces/default/jobs/{job}/logs").json()["lines"]]
    assert texts == ["before", "still before", "the last"]
    view = world.view(job)
    assert view.metrics == {} and (view.progress is None or view.progress.step != 999)
    assert not checkpoints.list_checkpoints(world.ctx, world.anna.access(), job)


def test_an_engine_that_says_gone_is_given_the_lease_for_a_last_word(world):
    job = world.submit("e", min_nodes=1, max_nodes=2)
    world.tick()
    world.pool.status = lambda attempt_id, node: AgentState.GONE if node == 1 else AgentState.ALIVE
    world.scheduler.pass_once()
    assert world.view(job).attempts == 1 and jobs.get(world.ctx, world.anna.access(), job).status == "running"
    world.scheduler._gone_since = {key: at - 1000 for key, at in world.scheduler._gone_since.items()}
    world.scheduler.pass_once()
    assert "its agent died" in world.view(job).attempt_list[0].nodes[1].reason
