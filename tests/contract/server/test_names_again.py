"""A name can be used again: the finished job of that name is deleted in the transaction that creates the new one."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.errors import NameTaken, NotAllowedNow, NotFound
from shoal.core.jobs import JobSpec
from shoal.server.jobs import service as jobs


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


def submit(world, name, person=None, *, replace):
    person = person or world.anna
    spec = JobSpec(name=name, entry=["train.py"], source_id=world.sources[person.email])
    return jobs.submit(world.ctx, person.access(), spec, replace=replace)


def test_a_finished_job_makes_way_and_a_running_one_does_not(world):
    first = world.submit("again")
    with pytest.raises(NameTaken, match="again"):
        submit(world, "again", replace=False)
    with pytest.raises(NotAllowedNow, match="only finished jobs"):
        submit(world, "again", replace=True)
    world.tick()
    world.end(first)
    second = submit(world, "again", replace=True)
    assert second.id != first and second.name == "again"
    with pytest.raises(NotFound):
        world.view(first)


def test_replace_without_a_job_of_that_name_is_an_ordinary_submission(world):
    assert submit(world, "new", replace=True).name == "new"


def test_a_job_that_is_refused_leaves_the_older_one(world):
    first = world.submit("kept")
    world.tick()
    world.end(first)
    spec = JobSpec(name="kept", entry=["nowhere.py"], source_id=world.sources[world.anna.email])
    with pytest.raises(Exception, match=r"nowhere\.py"):
        jobs.submit(world.ctx, world.anna.access(), spec, replace=True)
    assert world.view(first).status == "succeeded"
