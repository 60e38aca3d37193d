"""Folders of Weights & Biases or TensorBoard in the output directory are restored like checkpoints, but no job resumes from them."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointCommit, CheckpointFacts
from shoal.core.states import JobState
from shoal.server.artifacts import checkpoints, chunks
from shoal.server.policy import AgentIdentity
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


def save(world, job, name, text, *, only_logs=False):
    attempt = world.attempt(job)
    who = AgentIdentity(job, attempt.id, attempt.number, 0)
    digest = chunk_hash(text)
    chunks.put(world.ctx, world.anna.workspace_id, b"".join(encode_frames([(digest, text)])))
    entry = FileEntry(path="file", size=len(text), chunks=[Chunk(hash=digest, size=len(text))])
    manifest = Manifest(files=[entry])
    facts = CheckpointFacts(only_logs=only_logs)
    return checkpoints.capture(world.ctx, who, CheckpointCommit(name=name, manifest=manifest, facts=facts)).checkpoint


def test_a_job_goes_on_from_its_weights_though_its_logs_are_newer(world):
    job = world.submit()
    world.tick()
    weights = save(world, job, ".", b"weights")
    save(world, job, "wandb", b"run", only_logs=True)
    assert checkpoints.newest_intact(world.ctx, job)[0] == weights.id


def test_logs_replace_each_other_and_never_push_weights_out(world):
    job = world.submit(keep_last=1)
    world.tick()
    weights = save(world, job, "step-1", b"weights")
    for text in (b"a", b"ab", b"abc"):
        last = save(world, job, "wandb", text, only_logs=True)
    found = checkpoints.list_checkpoints(world.ctx, world.anna.access(), job)
    assert [c.id for c in found] == [weights.id, last.id]
    assert [c.only_logs for c in found] == [False, True]


def test_logs_alone_do_not_count_as_getting_further(world):
    job = world.submit(max_restarts=1)
    for attempt in (1, 2):
        world.tick()
        assert world.attempt(job).number == attempt
        save(world, job, "wandb", b"run %d" % attempt, only_logs=True)
        world.end(job, code=-9, failed_rank=0, reason="killed by SIGKILL")
    assert checkpoints.newest_intact(world.ctx, job) is None
    assert world.view(job).status is JobState.FAILED


def test_logs_replace_neither_weights_by_the_same_name_nor_what_is_to_be_kept(world):
    job = world.submit()
    world.tick()
    weights = save(world, job, ".", b"weights")
    kept = save(world, job, ".", b"a", only_logs=True)
    checkpoints.keep(world.ctx, world.anna.access(), kept.id, True)
    last = [save(world, job, ".", text, only_logs=True) for text in (b"ab", b"abc")][-1]
    found = checkpoints.list_checkpoints(world.ctx, world.anna.access(), job)
    assert [c.id for c in found] == [weights.id, kept.id, last.id]
    assert checkpoints.newest_intact(world.ctx, job)[0] == weights.id
