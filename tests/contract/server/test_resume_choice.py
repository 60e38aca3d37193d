"""Choice of the checkpoint that a job resumes from, when its nodes or its script saved parts of it."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointCommit, CheckpointFacts
from shoal.core.errors import Corrupt
from shoal.server.artifacts import checkpoints, chunks
from shoal.server.policy import AgentIdentity
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


@pytest.fixture
def job(world):
    job = world.submit(min_nodes=2, max_nodes=2)
    world.tick()
    return job


def save(world, job, node, name, *files, **facts):
    attempt = world.attempt(job)
    who = AgentIdentity(job, attempt.id, attempt.number, node)
    entries = []
    for path in files:
        data = f"{name} {path} of node {node}".encode()
        chunks.put(world.ctx, world.anna.workspace_id, b"".join(encode_frames([(chunk_hash(data), data)])))
        entries.append(FileEntry(path=path, size=len(data), chunks=[Chunk(hash=chunk_hash(data), size=len(data))]))
    commit = CheckpointCommit(name=name, manifest=Manifest(files=entries), facts=CheckpointFacts(**facts))
    return checkpoints.capture(world.ctx, who, commit).checkpoint.id


def chosen(world, job):
    found = checkpoints.newest_intact(world.ctx, job)
    return found and (found[0], [file.path for file in found[1].files])


def test_shards_of_several_nodes_count_once_and_only_when_all_are_safe(world, job):
    assert chosen(world, job) is None
    save(world, job, 1, "step-1", "__1_0.distcp", is_part=True)
    assert chosen(world, job) is None
    first = save(world, job, 0, "step-1", ".metadata", "__0_0.distcp", lacks=["__1_0.distcp"])
    whole = (first, [".metadata", "__0_0.distcp", "__1_0.distcp"])
    assert chosen(world, job) == whole
    second = save(world, job, 0, "step-2", ".metadata", "__0_0.distcp", lacks=["__1_0.distcp"])
    assert chosen(world, job) == whole, "the other node's shard is not safe yet"
    save(world, job, 1, "step-2", "__1_0.distcp", is_part=True)
    assert chosen(world, job) == (second, whole[1])


def test_what_another_node_has_of_a_newer_checkpoint_is_not_gone_on_from_alone(world, job):
    first = save(world, job, 0, "checkpoint-1", "model.safetensors")
    save(world, job, 1, "checkpoint-1", "rng_state_1.pth")
    save(world, job, 1, "checkpoint-2", "rng_state_1.pth")
    assert chosen(world, job) == (first, ["model.safetensors", "rng_state_1.pth"])


def test_a_script_that_saves_on_another_node_only_is_served_too(world, job):
    last = save(world, job, 1, "last-stage", "model.pt")
    assert chosen(world, job) == (last, ["model.pt"])


def test_settings_written_before_the_first_weights_of_an_attempt_hide_no_earlier_ones(world, job):
    weights = save(world, job, 0, ".", "args.json", "epoch-3.pt")
    save(world, job, 0, ".", "args.json", only_text=True)
    assert chosen(world, job) == (weights, ["args.json", "epoch-3.pt"])


def test_a_damaged_one_is_passed_over_for_an_earlier_one_by_the_same_name(world, job, monkeypatch):
    earlier = save(world, job, 0, ".", "epoch-1.pt")
    damaged = save(world, job, 0, ".", "epoch-2.pt")
    get, lost = world.ctx.store.get, chunk_hash(b". epoch-2.pt of node 0")

    def read(name):
        if name == lost:
            raise Corrupt(f"{name} is damaged")
        return get(name)

    monkeypatch.setattr(world.ctx.store, "get", read)
    assert chosen(world, job) == (earlier, ["epoch-1.pt"])
    told = checkpoints.list_checkpoints(world.ctx, world.anna.access(), job)
    assert [c.id for c in told if c.damaged] == [damaged]


def test_a_job_whose_state_is_text_goes_on_from_that(world, job):
    save(world, job, 0, "step-1", "state.json", only_text=True)
    last = save(world, job, 0, "step-2", "state.json", only_text=True)
    assert chosen(world, job) == (last, ["state.json"])


def test_settings_do_not_push_weights_out(world):
    job = world.submit(keep_last=1)
    world.tick()
    weights = save(world, job, 0, "step-1", "model.pt")
    save(world, job, 0, ".", "args.json", only_text=True)
    assert chosen(world, job)[0] == weights
