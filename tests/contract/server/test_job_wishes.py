"""Wishes of single jobs: time to save when they are stopped, a device per worker, options of a cluster's queue."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.errors import InvalidSpec
from shoal.core.states import NodeState
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job


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
