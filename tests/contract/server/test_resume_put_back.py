"""Files that a new attempt finds again at the place where its script wrote them."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.agents import JoinRequest
from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointCommit, CheckpointFacts
from shoal.core.states import NodeState
from shoal.server.artifacts import checkpoints, chunks, upkeep
from shoal.server.jobs import agents
from shoal.server.policy import AgentIdentity
from shoal.store.hashing import chunk_hash
from shoal.store.manifest import load_manifest
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


def who(world, job, node=0):
    attempt = world.attempt(job)
    return AgentIdentity(job, attempt.id, attempt.number, node)


def save(world, job, name, files, node=0, **facts):
    """`files`: path → text."""
    entries = []
    for path, text in files.items():
        data = text.encode()
        chunks.put(world.ctx, world.anna.workspace_id, b"".join(encode_frames([(chunk_hash(data), data)])))
        entries.append(FileEntry(path=path, size=len(data), chunks=[Chunk(hash=chunk_hash(data), size=len(data))]))
    commit = CheckpointCommit(name=name, manifest=Manifest(files=entries), facts=CheckpointFacts(**facts))
    return checkpoints.capture(world.ctx, who(world, job, node), commit).checkpoint.id


def again(world, job, nodes=2):
    """Kill a worker; returns what each node of the next attempt puts back, as {(place, name): {path: text}}."""
    for node in range(nodes):
        world.beat(job, node, state=NodeState.EXITED, exit_code=-9, failed_rank=node)
    world.tick()
    return [back(world, job, node) for node in range(nodes)]


def back(world, job, node):
    agent = who(world, job, node)
    reply = agents.join(world.ctx, agent, JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000))
    found = {}
    for item in reply.put_back:
        manifest = load_manifest(agents.manifest(world.ctx, agent, item.manifest_id))
        found[item.place, item.name] = {
            f.path: b"".join(agents.chunk(world.ctx, agent, c.hash) for c in f.chunks).decode() for f in manifest.files
        }
    return found


def test_the_newest_folder_and_the_files_beside_it_are_put_back(world, job):
    save(world, job, "step-1", {"model.pt": "one"})
    save(world, job, "step-2", {"model.pt": "two"})
    save(world, job, ".", {"args.json": "{}", "latest": "step-2"})
    wanted = {("output", "step-2"): {"model.pt": "two"}, ("output", "."): {"args.json": "{}", "latest": "step-2"}}
    assert again(world, job)[0] == wanted


def test_what_a_file_names_is_there_even_if_it_is_not_the_newest(world, job):
    save(world, job, "step-1", {"model.pt": "one"})
    save(world, job, ".", {"latest": "step-1\n"}, only_text=True)
    save(world, job, "step-2", {"model.pt": "two"})
    assert {name for _, name in again(world, job)[0]} == {"step-1", "step-2", "."}


def test_settings_alone_leave_the_output_folder_empty(world, job):
    save(world, job, ".", {"args.json": "{}"}, only_text=True)
    assert again(world, job) == [{}, {}]


def test_a_checkpoint_of_the_sdk_is_not_copied(world, job):
    save(world, job, "step-000000005", {"shoal.json": "{}", "model.pt": "five"})
    assert again(world, job) == [{}, {}]


def test_each_node_finds_its_own_files_first_and_those_of_the_others_beside_them(world, job):
    save(world, job, "workdir", {"rank.pt": "of node 0"}, node=0, place="workdir")
    save(world, job, "workdir", {"rank.pt": "of node 1", "only-1.pt": "x"}, node=1, place="workdir")
    save(world, job, "step-1", {"model.pt": "all"}, node=0)
    first, second = again(world, job)
    assert first["workdir", "workdir"] == {"rank.pt": "of node 0", "only-1.pt": "x"}
    assert second["workdir", "workdir"] == {"rank.pt": "of node 1", "only-1.pt": "x"}
    assert first["output", "step-1"] == second["output", "step-1"] == {"model.pt": "all"}


def test_the_output_folder_counts_before_the_working_directory(world, job):
    saved = save(world, job, "step-1", {"model.pt": "one"})
    other = save(world, job, "workdir/out", {"last.pt": "two"}, place="workdir")
    assert checkpoints.newest_intact(world.ctx, job)[0] == saved
    checkpoints.delete(world.ctx, world.anna.access(), saved)
    assert checkpoints.newest_intact(world.ctx, job)[0] == other


def test_of_the_working_directory_only_the_two_newest_stay_and_no_other_is_pushed_out(world):
    job = world.submit(keep_last=1)
    world.tick()
    saved = save(world, job, "step-1", {"model.pt": "one"})
    ids = [save(world, job, "workdir", {"last.pt": str(n)}, place="workdir") for n in range(4)]
    listed = checkpoints.list_checkpoints(world.ctx, world.anna.access(), job)
    assert [(c.id, c.place) for c in listed] == [(saved, "output"), *((i, "workdir") for i in ids[-2:])]


def test_files_of_the_working_directory_are_no_progress_that_earns_another_attempt(world):
    job = world.submit(max_restarts=5)
    world.tick()
    save(world, job, "workdir", {"init.pt": "0"}, place="workdir")
    world.end(job, code=1, failed_rank=0, reason="ValueError: again and again")
    assert world.view(job).status == "failed"


def test_a_job_may_do_without(world):
    job = world.submit(env={"SHOAL_PUT_BACK": "0"})
    world.tick()
    save(world, job, "step-1", {"model.pt": "one"})
    assert again(world, job, nodes=1) == [{}]


def test_what_is_being_put_back_is_not_collected(world, job):
    saved = save(world, job, "step-1", {"model.pt": "one"}, node=0)
    save(world, job, "step-1", {"other.pt": "two"}, node=1)
    again(world, job)
    checkpoints.delete(world.ctx, world.anna.access(), saved)
    with world.ctx.db.read() as session:
        used = upkeep.used_manifests(session)
    reply_of = [back(world, job, node) for node in range(2)]
    assert all(found["output", "step-1"] == {"model.pt": "one", "other.pt": "two"} for found in reply_of)
    resume = world.attempt(job).resume
    assert {one["manifest_id"] for node in resume["put_back"].values() for one in node} <= used


def test_the_story_says_what_is_known(world, job):
    saved = save(world, job, "step-1", {"model.pt": "one"})
    again(world, job)
    messages = [e.message for e in world.view(job).events]
    assert f"attempt 2 is given checkpoint {saved} at /input-checkpoint" in messages
    assert not any("starts from" in message for message in messages)
