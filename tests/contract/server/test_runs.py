"""Runs made elsewhere: brought in once however often they are sent, and left alone by everything that runs jobs."""

import json
import sys
from pathlib import Path

import pytest
import zstandard
from sqlalchemy import select

from shoal.server.artifacts import upkeep
from shoal.server.models.jobs import Attempt, Job
from shoal.server.scheduler.loop import Scheduler
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import add_job

sys.path.insert(0, str(Path(__file__).parent))

from metriclines import Sender, add_attempt

W = "/workspaces/default"
RUN = {
    "run_id": "r1",
    "name": "toy",
    "created": "2026-01-31T12:00:00Z",
    "argv": ["toy.py"],
    "world_size": 2,
    "host": "h",
}
STEPS = [json.dumps({"t": 5.0 + i, "n": i, "k": "s", "i": i, "v": {"loss": i / 2}}) for i in range(10)]


def begin(client, **changes):
    return client.post(f"{W}/imports", RUN | changes)


def send(client, lines, first=0, *, stream="metric", part="0", job="toy"):
    body = zstandard.compress("\n".join(lines).encode())
    params = {"part": part, "seq_first": first, "count": len(lines)}
    return client.request("POST", f"{W}/jobs/{job}/import/segments/{stream}", params=params, content=body)


def loss(client, job="toy"):
    return client.get(f"{W}/jobs/{job}/metrics").json()["metrics"].get("loss", [])


def medium(data=b"png", **changes):
    digest = chunk_hash(data)
    entry = {"path": "p.png", "size": len(data), "chunks": [{"hash": digest, "size": len(data)}]}
    return {"rank": 0, "n": 0, "t": 1.0, "step": 1, "name": "p", "type": "image", "mime": "image/png", "manifest": {"files": [entry]}} | changes  # fmt: skip


def frames(data=b"png"):
    return b"".join(encode_frames([(chunk_hash(data), data)]))


def test_one_run_is_one_job_and_tells_how_much_of_it_is_here(as_anna):
    first = begin(as_anna).json()
    assert (first["job"]["status"], first["job"]["imported"], first["heads"]) == ("running", True, {})
    send(as_anna, STEPS[:4])
    send(as_anna, [json.dumps({"t": 1, "r": 0, "e": "out", "m": "hi"})], stream="log", part="rank-0.log")
    again = begin(as_anna, name="renamed").json()
    assert again["job"]["id"] == first["job"]["id"]
    assert again["heads"] == {"metric/0": 4, "log/rank-0.log": 1}


def test_lines_sent_again_in_any_overlap_count_once(as_anna):
    begin(as_anna)
    for first, end in ((0, 4), (0, 4), (2, 7), (0, 7), (7, 10)):
        assert send(as_anna, STEPS[first:end], first).status_code == 200
    assert loss(as_anna) == [[i, i / 2] for i in range(10)]
    gap = send(as_anna, STEPS[:1], 99)
    assert (gap.status_code, gap.json()["error"]["details"]) == (409, {"next_seq": 10})
    for _ in range(2):
        send(as_anna, [json.dumps({"t": 1, "r": 0, "e": "out", "m": "hi"})], stream="log", part="rank-0.log")
    assert [line["text"] for line in as_anna.get(f"{W}/jobs/toy/logs").json()["lines"]] == ["hi"]


def test_a_rank_is_the_number_of_its_file_whatever_its_lines_say(as_anna):
    begin(as_anna)
    send(as_anna, [STEPS[0].replace('"k"', '"rank": 0, "q": 77, "k"')], part="1")
    assert loss(as_anna) == []
    assert send(as_anna, STEPS[:1], part="../../x").status_code == 422


def test_nothing_here_schedules_stops_or_resumes_it(ctx, as_anna):
    begin(as_anna)
    for state in ({"status": "running"}, {"status": "failed", "reason": "no", "exit_code": 1}):
        assert as_anna.post(f"{W}/jobs/toy/import/state", state).status_code == 200
        stopped = as_anna.post(f"{W}/jobs/toy/stop")
        assert stopped.status_code == (409 if state["status"] == "running" else 200)
    assert as_anna.post(f"{W}/jobs/toy/resume").status_code == 409
    Scheduler(ctx, "http://x").pass_once()
    view = as_anna.get(f"{W}/jobs/toy").json()
    assert (view["status"], view["reason"], view["attempts"], view["exit_code"]) == ("failed", "no", 1, 1)
    with ctx.db.read() as session:
        assert [a.state for a in session.scalars(select(Attempt))] == ["ended"]


def test_it_may_go_on_after_it_was_held_ended_and_be_deleted_at_any_time(as_anna):
    begin(as_anna)
    for status in ("stopped", "running", "succeeded", "running"):
        answer = as_anna.post(f"{W}/jobs/toy/import/state", {"status": status})
        assert (answer.json()["status"], answer.json()["ended_at"] is None) == (status, status == "running")
    assert as_anna.post(f"{W}/jobs/toy/import/state", {"status": "queued"}).status_code == 422
    assert as_anna.delete(f"{W}/jobs/toy").status_code == 204
    assert begin(as_anna).json()["heads"] == {}


def test_a_name_that_is_taken_is_said_so(ctx, anna, as_anna):
    add_job(ctx, anna, "toy")
    answer = begin(as_anna)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "name_taken")


def test_jobs_that_run_here_take_nothing_from_outside(ctx, anna, as_anna):
    add_job(ctx, anna, "mine")
    assert send(as_anna, STEPS, job="mine").status_code == 409
    assert as_anna.post(f"{W}/jobs/mine/import/state", {"status": "succeeded"}).status_code == 409
    with ctx.db.read() as session:
        assert session.scalars(select(Job.state)).one() == "queued"


def test_a_run_of_ones_own_is_nobody_elses(as_anna, as_berta):
    begin(as_anna)
    assert begin(as_berta).json()["heads"] == {}
    assert as_berta.get(f"{W}/jobs/toy/metrics").json()["metrics"] == {}


def test_media_come_once_whatever_is_sent_again(as_anna):
    begin(as_anna)
    path = f"{W}/jobs/toy/import/media"
    assert as_anna.post(path, medium()).json()["missing"] == [chunk_hash(b"png")]
    as_anna.request("POST", f"{W}/store/chunks", content=frames())
    first = as_anna.post(path, medium()).json()
    assert as_anna.post(path, medium()).json()["id"] == first["id"]
    [shown] = as_anna.get(f"{W}/jobs/toy/media").json()
    assert (shown["id"], shown["name"], shown["size"]) == (first["id"], "p", 3)
    two = medium()
    two["manifest"]["files"] *= 2
    assert as_anna.post(path, two).status_code == 422


@pytest.mark.parametrize(
    ("mime", "kind", "disposition"),
    [
        ("image/png", "image/png", "inline"),
        ("image/svg+xml", "image/svg+xml", "inline"),
        ("text/html", "application/octet-stream", "attachment"),
        ("image/png; x=<script>", "application/octet-stream", "attachment"),
        ("text/javascript", "application/octet-stream", "attachment"),
    ],
)
def test_a_browser_gets_only_harmless_kinds_and_always_in_a_cage(as_anna, mime, kind, disposition):
    begin(as_anna)
    as_anna.request("POST", f"{W}/store/chunks", content=frames())
    made = as_anna.post(f"{W}/jobs/toy/import/media", medium(mime=mime)).json()
    answer = as_anna.get(f"{W}/jobs/toy/media/{made['id']}")
    assert answer.content == b"png"
    assert answer.headers["content-type"] == kind
    assert answer.headers["content-disposition"].startswith(disposition)
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy and "default-src 'none'" in policy and "allow-scripts" not in policy


def test_an_agents_media_are_kept_by_the_collector_until_the_job_goes(ctx, app, anna, as_anna):
    job = add_job(ctx, anna)
    sender = Sender(app, add_attempt(ctx, job)[0])
    add_attempt(ctx, job)  # a newer one: the first is fenced, and may still bring what it had
    sender.client.request("POST", "/agent/chunks", content=frames())
    made = sender.client.post("/agent/media", medium()).json()
    upkeep.gc(ctx, grace_s=0, dry_run=False)
    assert as_anna.get(f"{W}/jobs/a-job/media/{made['id']}").content == b"png"
    ctx.db.write(lambda s: setattr(s.get_one(Job, job), "state", "succeeded"))
    as_anna.delete(f"{W}/jobs/a-job")
    upkeep.gc(ctx, grace_s=0, dry_run=False)
    assert made["manifest_id"] not in ctx.store.list_manifests()
