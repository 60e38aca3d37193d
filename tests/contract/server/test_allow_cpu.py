"""A job that may train on the CPU of a GPU's slot tells its agents so; jobs of before that could be said do not."""

import pytest
from queueworld import TwoMachines, World
from sqlalchemy import select

from shoal.core.agents import JoinRequest
from shoal.server.jobs import agents
from shoal.server.models.jobs import Attempt, Job
from shoal.server.policy import AgentIdentity


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


def join(world, job):
    world.scheduler.pass_once()
    with world.ctx.db.read() as session:
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == job)).one()
    who = AgentIdentity(job, attempt.id, attempt.number, 0)
    return agents.join(world.ctx, who, JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000))


def test_agents_are_told_whether_the_cpu_is_allowed(world):
    assert join(world, world.submit(allow_cpu=True)).allow_cpu is True
    assert join(world, world.submit()).allow_cpu is False


def test_a_job_submitted_before_that_could_be_said_is_not_allowed_the_cpu(world):
    job = world.submit()

    def forget(session):
        row = session.get_one(Job, job)
        row.spec = {k: v for k, v in row.spec.items() if k != "allow_cpu"}

    world.ctx.db.write(forget)
    assert join(world, job).allow_cpu is False
