"""Jobs that start after others: when they enter the queue, what they are told, what they get, and how they end without hope."""

from __future__ import annotations

import pytest
from test_attempts import World

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointCommit
from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.jobs import JobSpec
from shoal.core.states import JobState, NodeState
from shoal.server.artifacts import checkpoints, chunks
from shoal.server.jobs import agents
from shoal.server.jobs import service as jobs
from shoal.server.queue import service as queue
from shoal.server.web.job import history
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import add_source


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def end(world, job_id, code=0):
    world.beat(world.run(job_id), 0, state=NodeState.EXITED, exit_code=code)


def names(world, job_id, *, is_next):
    return [(one.job, one.status) for one in world.view(job_id).chain if one.is_next is is_next]


def test_it_starts_when_the_other_has_succeeded(world):
    first = world.submit()
    second = world.submit(after=["j0"])
    world.scheduler.pass_once()
    assert world.attempt(second) is None
    assert world.view(second).waiting == "waits for job 'j0' to succeed"
    why = queue.why(world.ctx, world.person.access(), second)
    assert (why.reason, why.text) == ("after", world.view(second).waiting)
    assert names(world, second, is_next=False) == [("j0", JobState.STARTING)]
    assert names(world, first, is_next=True) == [("j1", JobState.QUEUED)]
    end(world, first)
    world.scheduler.pass_once()
    assert world.attempt(second) is not None


def test_it_waits_for_all_and_holds_up_nobody(world):
    world.submit(accels=2)
    world.submit(accels=2)
    waiting = world.submit(accels=4, after=["j0", "j1:ended"])
    world.scheduler.pass_once()
    third = world.submit()
    end(world, world.view("j0").id)
    world.scheduler.pass_once()
    assert world.attempt(waiting) is None and world.attempt(third) is not None, "slots are not kept for it"
    assert world.view(waiting).waiting == "waits for job 'j1' to end"


@pytest.mark.parametrize(("code", "state"), [(0, JobState.STARTING), (3, JobState.STARTING)])
def test_after_any_end_a_failure_is_an_end_too(world, code, state):
    first = world.submit(max_restarts=0)
    second = world.submit(after=[{"job": first, "when": "ended"}])
    end(world, first, code)
    world.scheduler.pass_once()
    assert world.view(second).status is state


def test_a_failure_stops_the_chain_behind_it_and_resuming_brings_it_back(world):
    first = world.submit(max_restarts=0)
    second = world.submit(after=["j0"])
    third = world.submit(after=["j1"])
    end(world, first, code=3)
    for _ in range(2):
        world.scheduler.pass_once()
    assert world.view(second).status is world.view(third).status is JobState.STOPPED
    assert world.view(second).reason == "job 'j0', after whose success it was to start, failed"
    assert world.view(third).reason == "job 'j1', after whose success it was to start, was stopped"
    for job in (first, second, third):
        jobs.resume(world.ctx, world.person.access(), job)
    end(world, first)
    end(world, second)
    world.scheduler.pass_once()
    assert world.view(third).status is JobState.STARTING


def test_the_page_shows_the_order_and_the_command_that_runs_it_again(world):
    world.submit()
    world.submit(after=["j0"])
    last = world.view(world.submit(after=["j1:ended"]))
    assert "--after j1:ended" in history.rerun_command(last)
    middle = world.view("j1")
    assert [(one.job, one.when, one.is_next) for one in middle.chain] == [
        ("j0", "succeeded", False),
        ("j2", "ended", True),
    ]


def test_a_deleted_job_is_waited_for_no_longer(world):
    first = world.submit()
    second = world.submit(after=["j0:ended"])
    world.stop(first)
    jobs.delete(world.ctx, world.person.access(), first)
    world.scheduler.pass_once()
    assert world.view(second).reason == "job 'j0', after which it was to start, was deleted"


def test_mistakes_are_found_when_it_is_submitted(world):
    with pytest.raises(NotFound):
        world.submit(after=["nothing"])
    failed = world.submit()
    world.stop(failed)
    with pytest.raises(InvalidSpec, match="was stopped") as caught:
        world.submit(after=[failed])
    assert "training resume j1" in caught.value.hint
    with pytest.raises(InvalidSpec, match="twice"):
        world.submit(after=["j1:ended", f"{failed}:ended"])
    with pytest.raises(ValueError, match="JOB:ended"):
        world.submit(after=["j1:failed"])


def save(world, attempt, name, text):
    data = text.encode()
    digest = chunk_hash(data)
    chunks.put(world.ctx, world.person.workspace_id, b"".join(encode_frames([(digest, data)])))
    entry = FileEntry(path="tokens.txt", size=len(data), chunks=[Chunk(hash=digest, size=len(data))])
    who = world.who(attempt, 0)
    return checkpoints.capture(
        world.ctx, who, CheckpointCommit(name=name, manifest=Manifest(files=[entry]))
    ).checkpoint.id


def test_the_newest_checkpoint_of_each_job_before_it_is_its_input(world):
    first, empty = world.submit(), world.submit()
    last = world.submit(after=["j0", "j1"])
    attempt = world.run(first)
    save(world, attempt, "one", "old")
    newest = save(world, attempt, "two", "new")
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=0)
    end(world, empty)
    world.scheduler.pass_once()
    started = world.attempt(last)
    for _ in range(2):  # an agent may join again
        [mount] = world.join(started, 0).mounts
        assert (mount.path, mount.name) == ("/input/j0", newest)
    agents.chunk(world.ctx, world.who(started, 0), chunk_hash(b"new"))
    [event] = [e for e in world.view(last).events if e.kind == "inputs"]
    assert f"{newest} at /input/j0" in event.message


def test_a_job_that_has_done_the_same_is_reused_and_nothing_else_is(world):
    def same(name="again", **wishes):
        spec = JobSpec(name=name, entry=["train.py"], source_id=world.source, **wishes)
        return jobs.submit(world.ctx, world.person.access(), spec, reuse_same=True).name

    world.submit()
    end(world, world.view("j0").id)
    step = world.submit(after=["j0"], env={"A": "1"})
    assert same("j0", priority=3) == "j0", "its name and priority do not change what it did"
    assert same("not-yet", after=["j0"], env={"A": "1"}) == "not-yet", "the other has not succeeded yet"
    world.stop(world.view("not-yet").id)
    end(world, step)
    assert same(after=["j0"], env={"A": "1"}) == "j1"
    assert same("other-env", env={"A": "2"}) == "other-env"
    world.source = add_source(world.ctx, world.person, b"print('changed')\n")
    assert same("other-code") == "other-code"


def test_the_name_below_input_may_be_another(world):
    world.submit()
    last = world.submit(after=["data=j0"])
    attempt = world.run(world.view("j0").id)
    save(world, attempt, "one", "x")
    world.beat(attempt, 0, state=NodeState.EXITED, exit_code=0)
    world.scheduler.pass_once()
    assert [mount.path for mount in world.join(world.attempt(last), 0).mounts] == ["/input/data"]
    assert "--after data=j0" in history.rerun_command(world.view(last))
