"""Stacks of a job's workers: asked of all its nodes, put together, and told wherever people look."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.errors import Fenced, InvalidSpec
from shoal.core.settings import ServerSettings
from shoal.core.stacks import RankStack, StacksReport
from shoal.core.states import NodeState
from shoal.server.jobs import service as jobs
from shoal.server.jobs import stacks
from shoal.server.jobs.agent_commands import AgentCommands
from shoal.server.policy import AgentIdentity

ALL_REDUCE = {"inside": "all_reduce", "at": "train.py:41", "waits": True, "frames": ["all_reduce (torch/d.py:1)"]}
LOADING = {"inside": "__getitem__", "at": "data.py:7", "frames": ["__getitem__ (data.py:7)"]}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    # Without the looks by which the server itself tells whether to end a job: test_stalled_attempts.py is about those.
    world.ctx.settings = ServerSettings(stall_s=60.0, stall_timeout_s=0.0)
    world.clock = Clock()
    world.ctx.commands = AgentCommands(world.clock)
    yield world
    world.ctx.db.close()


@pytest.fixture
def job(world):
    job = world.submit("gang", min_nodes=2, max_nodes=2, accels=2)
    world.tick()
    return job


def answer(world, job, node, ranks, order=None):
    attempt = world.attempt(job)
    who = AgentIdentity(job, attempt.id, attempt.number, node)
    [command] = [{"id": order}] if order else world.beat(job, node, state=NodeState.RUNNING).commands
    found = [RankStack(rank=rank, **about) for rank, about in ranks.items()]
    stacks.report(world.ctx, who, StacksReport(order=command["id"], ranks=found))


def path(job):
    return f"/workspaces/default/jobs/{job}"


def test_all_nodes_are_asked_until_each_has_answered_and_the_answers_become_one(world, job):
    order = world.as_anna.post(f"{path(job)}/stacks").json()["order"]
    for node in (0, 1):
        assert world.beat(job, node, state=NodeState.RUNNING).commands == [{"id": order, "do": "stacks"}]
    answer(world, job, 0, {0: ALL_REDUCE, 1: ALL_REDUCE})
    assert world.beat(job, 0, state=NodeState.RUNNING).commands == []
    half = world.as_anna.get(f"{path(job)}/stacks").json()
    assert (half["order"], half["complete"]) == (order, False)
    answer(world, job, 1, {2: LOADING, 3: ALL_REDUCE})
    whole = world.as_anna.get(f"{path(job)}/stacks").json()
    assert whole["complete"] and [g["ranks"] for g in whole["groups"]] == [[0, 1, 3], [2]]
    assert whole["text"] == (
        "asked for by anna@example.org: ranks 0, 1 and 3 wait in all_reduce, called at train.py:41; "
        "rank 2 is in __getitem__ at data.py:7"
    )
    [event] = [e for e in world.view(job).events if e.kind == "stacks"]
    assert event.message == whole["text"] and event.attempt == 1
    assert world.view(job).stalled is None, "somebody was curious, that is all"


def test_a_job_without_a_sign_of_progress_is_looked_at_once_each_time(world, job):
    world.tick()
    world.clock.now += 59
    world.tick()
    assert world.beat(job, state=NodeState.RUNNING).commands == []
    world.clock.now += 1
    world.tick()
    answer(world, job, 0, {0: ALL_REDUCE, 1: ALL_REDUCE})
    answer(world, job, 1, {2: LOADING, 3: {"note": "stopped by a signal (SIGSTOP), and cannot answer"}})
    world.clock.now += 30
    world.tick()
    assert world.beat(job, state=NodeState.RUNNING).commands == [], "once is enough"
    told = world.as_anna.get(f"{path(job)}/why").json()
    assert (told["reason"], told["text"]) == ("stalled", "it is running, but no line, metric or step for 60 s")
    assert told["evidence"] == [
        "ranks 0 and 1 wait in all_reduce, called at train.py:41",
        "rank 2 is in __getitem__ at data.py:7",
        "rank 3 is stopped by a signal (SIGSTOP), and cannot answer",
    ]
    assert "rank 2 is in __getitem__ at data.py:7" in world.view(job).stalled
    world.beat(job, state=NodeState.RUNNING, progress={"step": 7})
    assert world.view(job).stalled is None
    assert world.as_anna.get(f"{path(job)}/why").json()["reason"] == "not_waiting"
    world.tick()
    world.clock.now += 60
    world.tick()
    assert len(world.beat(job, state=NodeState.RUNNING).commands) == 1, "it stands still again"


def test_only_a_running_job_can_be_asked_and_an_answer_nobody_waits_for_is_dropped(world, job):
    world.clock.now += 1
    answer(world, job, 0, {0: LOADING}, order="ord_never")
    assert world.as_anna.get(f"{path(job)}/stacks").status_code == 404
    waits = world.submit("later", min_nodes=2, max_nodes=2, accels=4)
    refused = world.as_anna.post(f"{path(waits)}/stacks")
    assert refused.status_code == 409 and "is queued" in refused.json()["error"]["message"]
    world.as_anna.post(f"{path(job)}/stacks")
    world.clock.now += 61
    assert world.beat(job, state=NodeState.RUNNING).commands == [], "nobody waits for it any more"


def test_a_node_speaks_for_its_own_ranks_and_a_fenced_one_for_none(world, job):
    order = world.as_anna.post(f"{path(job)}/stacks").json()["order"]
    with pytest.raises(InvalidSpec, match="Rank 2 is not one of node 0"):
        answer(world, job, 0, {2: LOADING}, order)
    with pytest.raises(InvalidSpec, match="Rank 0 is not one of node 1"):
        answer(world, job, 1, {0: LOADING}, order)
    world.end(job, code=1, failed_rank=0, reason="boom")
    with pytest.raises(Fenced):
        answer(world, job, 1, {2: LOADING}, order)
    assert [e.kind for e in jobs.get(world.ctx, world.anna.access(), job).events].count("stacks") == 0
