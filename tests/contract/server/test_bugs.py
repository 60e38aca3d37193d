"""Steps that failed, from the agent's word to the job's page: told once, never a checkpoint, kept as long as the job."""

from __future__ import annotations

import pytest

from shoal.core.agents import TOKEN_HEADER
from shoal.server.artifacts import checkpoints, upkeep
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import AppClient, add_job, add_node

W = "/workspaces/default/jobs/a-job"
TEXT = b"all that was kept of a failed step"
FILE = {"path": "capsule.json", "size": len(TEXT), "chunks": [{"hash": chunk_hash(TEXT), "size": len(TEXT)}]}
BUG = {
    "rank": 1, "n": 7, "t": 1_700_000_000.0, "step": 12, "seen": 96, "name": "step-000000012-rank-1",
    "error": "NonFiniteLoss", "message": "the loss of step 12 is nan", "where": "train.py:9 in train_batch",
}  # fmt: skip


@pytest.fixture
def job(ctx, anna):
    return add_job(ctx, anna)


@pytest.fixture
def agent(ctx, app, job):
    return AppClient(app, headers={TOKEN_HEADER: add_node(ctx, job)})


def tell(agent, **changes):
    answer = agent.post("/agent/bugs", BUG | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


def bring(agent, **changes):
    """First word of it, then the capsule."""
    tell(agent, **changes)
    told = tell(agent, manifest={"files": [FILE]}, **changes)
    if told["missing"]:
        assert told["missing"] == [chunk_hash(TEXT)]
        agent.post("/agent/chunks", content=b"".join(encode_frames([(chunk_hash(TEXT), TEXT)])))
        told = tell(agent, manifest={"files": [FILE]}, **changes)
    assert told["missing"] == []
    return told["id"]


def bug_events(client):
    return [e for e in client.get(W).json()["events"] if e["kind"] == "bug"]


def test_a_failed_step_shows_before_its_capsule_is_here(agent, as_anna):
    told = tell(agent)
    (found,) = as_anna.get(f"{W}/bugs").json()
    assert found["id"] == told["id"] and found["ready"] is False and found["step"] == 12 and found["rank"] == 1
    (event,) = bug_events(as_anna)
    assert event["message"] == (
        "step 12 failed on rank 1 at train.py:9 in train_batch: NonFiniteLoss: the loss of step 12 is nan"
    )
    assert event["data"] == {
        "id": told["id"], "step": 12, "rank": 1, "error": "NonFiniteLoss", "message": "the loss of step 12 is nan",
    }  # fmt: skip
    refused = as_anna.get(f"{W}/bugs/{told['id']}/manifest")
    assert refused.status_code == 409 and "not arrived yet" in refused.json()["error"]["message"]


def test_a_capsule_is_committed_once_however_often_it_is_sent(agent, as_anna):
    assert bring(agent) == bring(agent)
    bring(agent, n=8, rank=0)
    found = as_anna.get(W).json()["bugs"]
    assert [(b["rank"], b["ready"], b["size"], b["files"]) for b in found] == [
        (1, True, len(TEXT), 1),
        (0, True, len(TEXT), 1),
    ]
    assert len(bug_events(as_anna)) == 2
    manifest = as_anna.get(f"{W}/bugs/{found[0]['id']}/manifest").json()
    assert [f["path"] for f in manifest["files"]] == ["capsule.json"]


def test_a_capsule_is_no_checkpoint_and_nothing_resumes_from_it(ctx, agent, anna, as_anna, job):
    bring(agent)
    assert as_anna.get("/workspaces/default/checkpoints", params={"job": "a-job"}).json() == []
    assert checkpoints.newest_intact(ctx, job) is None


def test_the_store_keeps_a_capsule_until_its_job_is_deleted(ctx, agent, as_anna, job):
    bug_id = bring(agent)
    upkeep.gc(ctx, grace_s=0, dry_run=False)
    assert as_anna.get(f"{W}/bugs/{bug_id}/manifest").status_code == 200
    assert ctx.store.get(chunk_hash(TEXT)) == TEXT
    as_anna.post(f"{W}/stop")
    assert as_anna.delete(W).status_code == 204
    upkeep.gc(ctx, grace_s=0, dry_run=False)
    assert ctx.store.missing([chunk_hash(TEXT)])


def test_the_code_of_a_job_can_be_had(as_anna, job):
    manifest = as_anna.get(f"{W}/source/manifest").json()
    assert [f["path"] for f in manifest["files"]] == ["train.py"]


@pytest.mark.parametrize("changes", [{"name": "../x"}, {"step": -1}, {"error": "x" * 201}, {"rank": -1}])
def test_malformed_words_of_a_bug_are_refused(agent, changes):
    assert agent.post("/agent/bugs", BUG | changes).status_code == 422


def test_the_table_of_a_migrated_database_is_the_models(tmp_path):
    from sqlalchemy import inspect

    from shoal.server.db import Database
    from shoal.server.migrations import upgrade
    from shoal.server.models.bugs import Bug

    db = Database(tmp_path / "x.db")
    upgrade(db.writer)
    made = {c["name"]: c["nullable"] for c in inspect(db.writer).get_columns("bugs")}
    assert made == {c.name: c.nullable for c in Bug.__table__.columns}
    db.close()
