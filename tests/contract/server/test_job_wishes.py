"""Wishes of single jobs: time to save when they are stopped, a device per worker, options of a cluster's queue."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from queueworld import TwoMachines, World

from shoal.core.agents import JoinRequest
from shoal.core.errors import Forbidden, InvalidSpec
from shoal.core.jobs import JobSpec
from shoal.core.states import NodeState
from shoal.server.jobs import agents
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job
from shoal.server.policy import AgentIdentity


class Remembering(TwoMachines):
    def start(self, gang):
        self.options = gang.options


@pytest.fixture
def engine():
    return Remembering()


@pytest.fixture
def world(tmp_path, engine):
    world = World(tmp_path, engine)
    yield world
    world.ctx.db.close()


@pytest.mark.parametrize(("own", "told"), [(None, 10.0), (300, 300.0), (0, 0.0)])
def test_a_job_that_is_stopped_gets_its_own_time_to_save_or_that_of_the_server(world, own, told):
    job = world.submit(grace_s=own)
    world.tick()
    jobs.stop(world.ctx, world.anna.access(), job)
    reply = world.beat(job, state=NodeState.RUNNING)
    assert reply.stop and reply.grace_s == told


def test_a_job_of_before_gets_that_of_the_server(world):
    job = world.submit()

    def forget(session):
        row = session.get_one(Job, job)
        row.spec = {
            k: v for k, v in row.spec.items() if k not in ("grace_s", "engine_options", "one_device_per_worker")
        }

    world.ctx.db.write(forget)
    world.tick()
    assert world.beat(job, state=NodeState.RUNNING).grace_s == 10.0


def test_options_of_a_cluster_reach_the_engine(world, engine):
    world.submit(engine_options={"partition": "long", "qos": "high"})
    world.tick()
    assert engine.options == {"partition": "long", "qos": "high"}


def test_an_option_that_no_engine_has_is_refused_with_those_there_are(world):
    with pytest.raises(InvalidSpec, match="No engine of this server") as refused:
        world.submit(engine_options={"partitoin": "long"})
    assert "partition" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "options", [{"Bad Name": "x"}, {"qos": "a b"}, {"qos": ""}, {"qos": "--wrap=sh"}, {"qos": "a\nb"}]
)
def test_options_that_could_mean_something_else_to_a_program_are_refused(world, options):
    with pytest.raises(ValueError, match="--engine-option"):
        world.submit(engine_options=options)


MOUNTS = ["s3://bucket/images:/data", "s3://bucket/x?endpoint=http://10.0.0.5:9000:/other", "/mnt/nas:/nas:rw"]


def test_mounts_reach_the_agent(world):
    job = world.submit(mounts=MOUNTS[:1])
    world.tick()
    attempt = world.attempt(job)
    who = AgentIdentity(job, attempt.id, attempt.number, 0)
    request = JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000)
    assert agents.join(world.ctx, who, request).folder_mounts == MOUNTS[:1]


@pytest.mark.parametrize(
    ("mount", "egress", "is_allowed"),
    [(MOUNTS[0], "open", True), (MOUNTS[0], "none", False), (MOUNTS[1], "open", False), (MOUNTS[2], "open", False)],
)
def test_a_shared_server_opens_neither_its_files_nor_its_network_to_mounts(world, mount, egress, is_allowed):
    settings = replace(world.ctx.settings, job_egress=egress)
    spec = JobSpec(name="x", entry=["train.py"], source_id="s", mounts=[mount])
    shared = SimpleNamespace(private=False, settings=settings)
    if is_allowed:
        jobs.refuse_mounts(shared, spec)
    else:
        with pytest.raises(Forbidden, match="shared server"):
            jobs.refuse_mounts(shared, spec)
