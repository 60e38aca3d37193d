"""A job that hangs is ended and started again once it is certain that it hangs; one that is merely slow or silent never is."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.settings import ServerSettings
from shoal.core.stacks import RankStack, StacksReport
from shoal.core.states import JobState, NodeState
from shoal.server.jobs import stacks
from shoal.server.jobs.agent_commands import AgentCommands
from shoal.server.jobs.stalls import Stalls
from shoal.server.models.jobs import Job
from shoal.server.policy import AgentIdentity

ALL_REDUCE = {
    "inside": "all_reduce",
    "at": "train.py:41",
    "waits": True,
    "frames": ["all_reduce (torch/distributed/distributed_c10d.py:2501)", "step (train.py:41)"],
}
LOADING = {"inside": "__getitem__", "at": "data.py:7", "frames": ["__getitem__ (data.py:7)"]}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    world.clock = Clock()
    world.ctx.settings = ServerSettings()
    world.ctx.commands, world.ctx.stalls = AgentCommands(world.clock), Stalls(world.clock)
    yield world
    world.ctx.db.close()


def gang(world, **wishes):
    job = world.submit("gang", min_nodes=2, max_nodes=2, **wishes)
    world.tick()
    return job


def train(world, job, *, seconds_per_step, steps=100):
    world.ctx.commands.reset(world.attempt(job).id)
    for _ in range(steps):
        world.clock.now += seconds_per_step
        world.ctx.commands.record_progress(world.attempt(job).id)


def stand_still(world, job, ranks, *, for_s, number=1):
    """Let time pass while agents answer what they are asked: each rank at its place, without using CPU."""
    until = world.clock.now + for_s
    while world.clock.now < until and world.attempt(job).number == number:
        world.clock.now += 50
        world.scheduler.pass_once()
        attempt = world.attempt(job)
        for node in range(attempt.num_nodes):
            who = AgentIdentity(job, attempt.id, attempt.number, node)
            reply = world.beat_as(who, state=NodeState.RUNNING)
            if reply.fenced:
                world.beat_as(who, state=NodeState.EXITED, exit_code=-9, told=True, final=True)
            for command in [] if reply.fenced else reply.commands:
                found = [RankStack(rank=node, cpu_s=1.0, moved=0, **ranks[node])]
                stacks.report(world.ctx, who, StacksReport(order=command["id"], ranks=found))


def first_reason(world, job):
    return world.view(job).attempt_list[0].reason


def test_a_rank_that_hangs_while_others_wait_for_it_is_ended_and_the_job_started_again(world):
    job = gang(world)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=550)
    assert world.view(job).status is JobState.RUNNING, "other ranks may wait ten minutes, as with NCCL"
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=100)
    assert first_reason(world, job) == (
        "rank 1 made no progress for 10 min in __getitem__ at data.py:7 "
        "while rank 0 waited in all_reduce, called at train.py:41"
    )
    view = world.view(job)
    assert view.attempts == 2 or view.status is JobState.QUEUED
    assert any("restart 1 of 3" in event.message for event in view.events)


def test_a_job_of_short_steps_is_ended_sooner_and_after_that_only_by_the_full_time(world):
    job = gang(world)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=50)  # its nodes begin
    train(world, job, seconds_per_step=15)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=350)
    assert "made no progress for 4 min" in first_reason(world, job)
    world.tick()
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=50, number=2)
    train(world, job, seconds_per_step=15)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=500, number=2)
    assert world.view(job).status is JobState.RUNNING and world.attempt(job).number == 2
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=150, number=2)
    assert "made no progress for 10 min" in world.view(job).attempt_list[1].reason


def test_restarts_that_get_no_further_end_the_job(world):
    job = gang(world, max_restarts=0)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=700)
    view = world.view(job)
    assert view.status is JobState.FAILED and "made no progress" in view.reason
    assert [e.kind for e in view.events].count("stalled") == 1


def test_looks_before_the_limit_leave_no_trace_but_the_one_people_are_told_of(world):
    job = gang(world)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=500)
    assert [e.kind for e in world.view(job).events].count("stacks") == 1


def test_a_job_somebody_is_attached_to_is_left_alone(world):
    job = gang(world)
    world.ctx.attached.endpoint(world.attempt(job).id, 1, "gang", world.ctx.ssh_keys)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=700)
    assert world.view(job).status is JobState.RUNNING


def test_a_job_may_have_its_own_limit(world):
    job = world.submit("own", stall_timeout_s=120)
    world.tick()
    stand_still(world, job, [LOADING], for_s=100)
    assert world.view(job).status is JobState.RUNNING
    stand_still(world, job, [LOADING], for_s=100)
    assert first_reason(world, job).startswith("no line, metric or step for 2 min")


def test_a_job_can_ask_to_fail_instead_of_being_started_again(world):
    job = gang(world, on_stall="fail")
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=700)
    view = world.view(job)
    assert (view.status, view.attempts) == (JobState.FAILED, 1)
    assert "rank 1 made no progress for 10 min in __getitem__ at data.py:7" in view.reason
    assert any("--on-stall fail" in event.message for event in view.events)


def test_a_job_can_ask_to_be_left_alone_and_is_still_reported(world):
    job = gang(world, on_stall="wait", stall_timeout_s=120)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=2000)
    view = world.view(job)
    assert (view.status, view.attempts) == (JobState.RUNNING, 1)
    assert [e.kind for e in view.events].count("stacks") == 1
    assert view.stalled


def test_jobs_of_servers_before_the_option_are_started_again(world):
    job = gang(world)

    def work(session):
        row = session.get_one(Job, job)
        row.spec = {k: v for k, v in row.spec.items() if k != "on_stall"}

    world.ctx.db.write(work)
    stand_still(world, job, [ALL_REDUCE, LOADING], for_s=700)
    assert any("restart 1 of 3" in event.message for event in world.view(job).events)
