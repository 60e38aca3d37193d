"""Actions on the pages: workspaces, members, keys, secrets, jobs, checkpoints, uploads, logs, previews."""

import io
import json
import re
import zipfile

import pytest
import zstandard
from sqlalchemy import select
from web_browser import BASE, Browser

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointPush
from shoal.core.people import Role
from shoal.server.artifacts import checkpoints, chunks
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job, Segment
from shoal.server.web.job import history, log_search, logs, system_metrics
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import add_job, add_member

HTMX = {"HX-Request": "true"}


@pytest.fixture
def browser(app, ctx, anna):
    return Browser(app).enter(ctx, anna)


def segment(job_id, stream, records, *, node=0, attempt=1):
    body = zstandard.ZstdCompressor().compress("\n".join(json.dumps(r) for r in records).encode())
    return Segment(
        job_id=job_id, attempt=attempt, node=node, stream=stream, seq_first=0, count=len(records),
        t_last=records[-1]["t"], body=body,
    )  # fmt: skip


def add_lines(ctx, job_id, texts, *, per_segment=10, rank=0):
    records = [{"s": n, "t": float(n), "r": rank, "e": "out", "m": text} for n, text in enumerate(texts)]
    for start in range(0, len(records), per_segment):
        ctx.db.write(lambda s, part=records[start : start + per_segment]: s.add(segment(job_id, "log", part)))


def test_making_a_workspace_leads_into_it(browser):
    assert browser.post("/workspaces", {"name": "team"}).headers["location"] == "/w/team/jobs"
    assert browser.post("/workspaces", {"name": "team2"}, headers=HTMX).headers["hx-redirect"] == "/w/team2/jobs"
    taken = browser.post("/workspaces", {"name": "team"}, headers=HTMX)
    assert taken.status_code == 409 and taken.json()["error"]["code"] == "name_taken"
    assert browser.post("/workspaces", {"name": "<script>"}, headers=HTMX).status_code == 422
    assert "team2" in browser.get("/workspaces").text


def test_deleting_a_workspace_with_its_jobs_unfinished_is_refused(browser, ctx, anna):
    add_job(ctx, anna)
    assert browser.post("/w/default/delete").status_code == 409


def test_members_come_and_go(browser, ctx, anna, berta):
    browser.post("/w/default/members", {"email": berta.email, "role": "member"})
    assert berta.email in browser.get("/w/default/members").text
    browser.post(f"/w/default/members/{berta.user_id}/remove")
    assert berta.email not in browser.get("/w/default/members").text
    assert browser.post("/w/default/members", {"email": berta.email, "role": "king"}, headers=HTMX).status_code == 422


def test_leaving_a_workspace_leads_out_of_it(app, ctx, anna, berta):
    add_member(ctx, anna.workspace_id, berta, Role.MEMBER)
    leaving = Browser(app).enter(ctx, berta).post(f"/w/{anna.workspace_id}/members/{berta.user_id}/remove")
    assert leaving.headers["location"] == "/workspaces"


def test_a_key_is_shown_once_and_works_until_it_is_revoked(app, browser):
    made = browser.post("/keys", {"name": "ci", "scope": ["read", "write"], "days": "30"}, headers=HTMX)
    key = re.search(r"shoal_[\w-]{43}", made.text)
    assert made.status_code == 201 and key and "<html" not in made.text
    assert key[0] not in browser.get("/keys").text
    bearer = {"Authorization": f"Bearer {key[0]}"}
    assert Browser(app).get("/api/v1/auth/me", headers=bearer).status_code == 200
    found = browser.get("/keys.json").json()["keys"]
    row = next(k for k in found if k["name"] == "ci")
    assert row["scopes"] == ["read", "write"] and row["expires_at"]
    browser.post(f"/keys/{row['id']}/revoke")
    assert Browser(app).get("/api/v1/auth/me", headers=bearer).status_code == 401


def test_a_key_without_scopes_is_refused(browser):
    assert browser.post("/keys", {"name": "ci"}, headers=HTMX).status_code == 422


def test_secrets_go_in_and_never_come_out(browser):
    answer = browser.post("/w/default/secrets", {"name": "TOKEN", "value": "deep-secret"}, headers=HTMX)
    assert answer.status_code == 204 and "deep-secret" not in str(answer.headers)
    for path in ("/w/default/secrets", "/w/default/secrets.json"):
        assert "TOKEN" in browser.get(path).text and "deep-secret" not in browser.get(path).text
    refused = browser.post("/w/default/secrets", {"name": "!", "value": "deep-secret"}, headers=HTMX)
    assert refused.status_code == 422 and "deep-secret" not in refused.text
    browser.post("/w/default/secrets/TOKEN/delete")
    assert browser.get("/w/default/secrets.json").json()["secrets"] == []


def test_a_job_is_stopped_resumed_and_deleted(browser, ctx, anna):
    add_job(ctx, anna)
    stopped = browser.post("/w/default/jobs/a-job/stop", headers=HTMX)
    assert stopped.status_code == 204 and "shoal:changed" in stopped.headers["hx-trigger"]
    assert jobs.get(ctx, anna.access(), "a-job").status == "stopped"
    assert browser.post("/w/default/jobs/a-job/resume").status_code == 303
    assert browser.post("/w/default/jobs/a-job/delete").status_code == 409
    browser.post("/w/default/jobs/a-job/stop")
    assert browser.post("/w/default/jobs/a-job/delete", {"then": "list"}).headers["location"] == "/w/default/jobs"
    assert browser.get("/w/default/jobs/a-job").status_code == 404


def test_a_new_job_starts_from_a_checkpoint(browser, ctx, anna):
    add_job(ctx, anna)
    data, access = b"weights", anna.access()
    chunks.put(ctx, anna.workspace_id, b"".join(encode_frames([(chunk_hash(data), data)])))
    entry = FileEntry(path="model.bin", size=len(data), chunks=[Chunk(hash=chunk_hash(data), size=len(data))])
    pushed = checkpoints.push(ctx, access, CheckpointPush(name="c", manifest=Manifest(files=[entry]))).checkpoint
    assert pushed is not None
    made = browser.post("/w/default/jobs/a-job/continue", {"checkpoint": pushed.id, "name": "second"})
    assert made.headers["location"] == "/w/default/jobs/second"
    assert jobs.get(ctx, access, "second").spec.checkpoint == pushed.id
    assert browser.post("/w/default/jobs/a-job/continue", {"checkpoint": pushed.id, "name": "no/"}).status_code == 422
    browser.post(f"/w/default/checkpoints/{pushed.id}/keep")
    assert checkpoints.get(ctx, access, pushed.id).kept is False
    browser.post(f"/w/default/checkpoints/{pushed.id}/delete")
    assert checkpoints.list_checkpoints(ctx, access, None) == []


def test_the_command_to_run_a_job_again_holds_every_setting(ctx, anna):
    add_job(ctx, anna)
    view = jobs.get(ctx, anna.access(), "a-job")
    assert history.rerun_command(view) == "shoal training run a-job-again -- train.py"
    view.spec.entry, view.spec.min_nodes, view.spec.max_nodes = ["train.py", "--text", "two words; rm -rf"], 1, 4
    view.spec.env, view.spec.accels, view.spec.keep_best = {"A": "b c"}, 2, "-acc"
    assert history.rerun_command(view) == (
        "shoal training run a-job-again --nodes 1:4 --accels 2 --keep-best -acc --env 'A=b c' "
        "-- train.py --text 'two words; rm -rf'"
    )


def test_the_timeline_covers_a_jobs_life_without_gaps(ctx, anna):
    add_job(ctx, anna)
    jobs.stop(ctx, anna.access(), "a-job")
    jobs.resume(ctx, anna.access(), "a-job")
    spans = history.timeline(jobs.get(ctx, anna.access(), "a-job"))
    assert [s.state for s in spans] == ["queued", "stopped", "queued"]
    assert sum(s.width for s in spans) == pytest.approx(100, abs=0.1)


def test_the_log_is_read_backwards_from_its_end(ctx, anna):
    job_id = add_job(ctx, anna)
    add_lines(ctx, job_id, [f"line {n}" for n in range(1000)])
    everything = logs.Filter()
    last = logs.tail(ctx, anna.access(), job_id, everything, wanted=95)
    assert [line.text for line in last.lines] == [f"line {n}" for n in range(905, 1000)]
    assert last.earlier
    seen = [line.text for line in last.lines]
    while last.earlier:
        last = logs.tail(ctx, anna.access(), job_id, everything, before=last.first, wanted=333)
        seen = [line.text for line in last.lines] + seen
    assert seen == [f"line {n}" for n in range(1000)]


def test_an_empty_log_is_empty(ctx, anna):
    job_id = add_job(ctx, anna)
    found = logs.tail(ctx, anna.access(), job_id, logs.Filter())
    assert (found.lines, found.cursor, found.earlier) == ([], 0, False)


def test_the_log_is_searched_and_the_first_error_found(browser, ctx, anna, monkeypatch):
    monkeypatch.setattr(log_search, "SEARCH_S", 60)  # a slow machine would get part of the answer
    job_id = add_job(ctx, anna)
    texts = [f"step {n} ok" for n in range(500)]
    texts[321] = 'Traceback (most recent call last): "Grüße"'
    texts[322] = "ValueError: no"
    add_lines(ctx, job_id, texts)
    base = "/w/default/jobs/a-job/logs"
    first = browser.get(f"{base}/first-error").json()["hits"]
    assert first[0]["line"]["text"] == texts[321]
    for q in ("valueerror", "GRÜSSE", '"gr'):
        hits = browser.get(f"{base}/search", params={"q": q}).json()["hits"]
        assert [h["line"]["at"] for h in hits] == [322.0 if q == "valueerror" else 321.0]
    nearby = browser.get(f"{base}/lines", params={"around": first[0]["at"]}).json()
    assert texts[321] in [line["text"] for line in nearby["lines"]] and nearby["earlier"]
    missed = browser.get(f"{base}/search", params={"q": "nothing like it"}).json()
    assert (missed["hits"], missed["more"]) == ([], False)


def test_the_log_of_one_rank_is_that_ranks(browser, ctx, anna):
    job_id = add_job(ctx, anna)
    add_lines(ctx, job_id, ["zero"], rank=0)
    add_lines(ctx, job_id, ["one"], rank=1)
    lines = browser.get("/w/default/jobs/a-job/logs/lines?rank=1").json()["lines"]
    assert [line["text"] for line in lines] == ["one"]


def test_the_whole_log_downloads_as_text(browser, ctx, anna):
    add_lines(ctx, add_job(ctx, anna), [f"line {n} <b>" for n in range(30)])
    answer = browser.get("/w/default/jobs/a-job/logs/download")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    assert len(answer.text.splitlines()) == 30 and answer.text.endswith("line 29 <b>\n")


def test_system_samples_are_thinned_by_node(ctx, anna):
    job_id = add_job(ctx, anna)
    records = [
        {"t": float(n), "cpu": n, "rss": 5, "gpu": [{"i": 0, "util": 50}, {"i": 0, "part": 2, "mem": 7}]}
        for n in range(3000)
    ]
    for node in (0, 1):
        ctx.db.write(lambda s, node=node: s.add(segment(job_id, "system", records, node=node)))
    found = system_metrics.samples(ctx, anna.access(), job_id)
    assert [n.node for n in found] == [0, 1]
    assert len(found[0].at) == system_metrics.POINTS == len(found[0].series["cpu"])
    assert found[0].series["cpu"][0] == 2.0 and found[0].series["gpu0_util"][-1] == 50
    assert found[0].series["gpu0s2_mem"][-1] == 7


def send(browser, files, *, name="up", **params):
    size = sum(len(data) for data in files.values())
    origin = {"Origin": BASE}
    begun = browser.request("POST", "/w/default/uploads", params={"size": size}, headers=origin).json()
    for path, data in files.items():
        for offset in range(0, max(1, len(data)), 5):
            put = browser.request(
                "PUT", f"/w/default/uploads/{begun['id']}", params={"path": path, "offset": offset},
                content=data[offset : offset + 5], headers=origin,
            )  # fmt: skip
            assert put.status_code == 200, put.text
    path = f"/w/default/uploads/{begun['id']}/dataset"
    return browser.request("POST", path, params={"name": name, **params}, headers=origin)


def test_an_upload_in_parts_becomes_a_dataset_that_can_be_looked_at(browser, ctx):
    files = {"a.csv": b"x,y\n1,2\n", "deep/b.json": b'{"k": [1, 2]}', "deep/c.bin": b"\0\1\2", "empty.txt": b""}
    made = send(browser, files).json()
    assert made["dataset"]["name"] == "up" and made["dataset"]["files"] == 4
    tree = browser.get("/w/default/datasets/up.json").json()["tree"]["entries"]
    assert [(e["name"], e["is_folder"], e["size"]) for e in tree] == [
        ("deep", True, 16), ("a.csv", False, 8), ("empty.txt", False, 0)
    ]  # fmt: skip
    table = browser.get("/w/default/datasets/up.json?file=a.csv").json()["preview"]
    assert (table["kind"], table["rows"]) == ("table", [["x", "y"], ["1", "2"]])
    shown = browser.get("/w/default/datasets/up.json?file=deep/b.json").json()["preview"]
    assert shown["kind"] == "text" and '"k"' in shown["text"]
    assert browser.get("/w/default/datasets/up.json?file=deep/c.bin").json()["preview"]["kind"] == "none"
    saved = browser.get("/w/default/datasets/up/download?file=deep/c.bin")
    assert saved.content == b"\0\1\2" and "sandbox" in saved.headers["content-security-policy"]
    assert not list((ctx.layout.server_dir / "uploads").rglob("tree"))


def test_an_uploaded_archive_is_unpacked_unless_told_otherwise(browser):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("folder/one.txt", "1")
        archive.writestr("folder/two.txt", "2")
    assert send(browser, {"data.zip": packed.getvalue()}).json()["dataset"]["files"] == 2
    assert send(browser, {"data.zip": packed.getvalue()}, unpack="false").json()["dataset"]["files"] == 1


@pytest.mark.parametrize("path", ["../../escape", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_an_uploads_path_cannot_leave_its_folder(browser, path):
    assert send_one(browser, path).status_code == 422


def send_one(browser, path, ident=None, offset=0):
    headers = {"Origin": BASE}
    ident = ident or browser.request("POST", "/w/default/uploads?size=1", headers=headers).json()["id"]
    return browser.request(
        "PUT", f"/w/default/uploads/{ident}", params={"path": path, "offset": offset}, content=b"x", headers=headers
    )


def test_an_upload_that_is_too_large_or_unknown_is_refused_at_once(browser):
    headers = {"Origin": BASE}
    too_large = browser.request("POST", "/w/default/uploads", params={"size": 10**15}, headers=headers)
    assert too_large.status_code == 413
    for ident in ("up_x", "..%2f..", "up_" + "0" * 26):
        assert send_one(browser, "a", ident).status_code == 404


def test_an_upload_given_up_leaves_nothing(browser, ctx):
    ident = browser.request("POST", "/w/default/uploads?size=1", headers={"Origin": BASE}).json()["id"]
    send_one(browser, "a", ident)
    gone = browser.request("DELETE", f"/w/default/uploads/{ident}", headers={"Origin": BASE})
    assert gone.status_code == 204 and send_one(browser, "a", ident).status_code == 404


def test_pictures_are_shown_and_whatever_could_hold_script_is_not(browser):
    send(browser, {"a.png": b"\x89PNG", "b.svg": b"<svg onload='alert(1)'/>", "c.html": b"<script>alert(1)</script>"})
    assert browser.get("/w/default/datasets/up/picture?file=a.png").headers["content-type"] == "image/png"
    for name in ("b.svg", "c.html"):
        assert browser.get(f"/w/default/datasets/up/picture?file={name}").status_code == 404
        saved = browser.get(f"/w/default/datasets/up/download?file={name}")
        assert saved.headers["content-type"] == "application/octet-stream"
        assert saved.headers["content-disposition"].startswith("attachment")


def test_a_dataset_version_is_deleted(browser):
    send(browser, {"a": b"1"})
    send(browser, {"a": b"2"})
    assert browser.post("/w/default/datasets/up@1/delete").headers["location"] == "/w/default/datasets"
    assert [v["version"] for v in browser.get("/w/default/datasets/up.json").json()["versions"]] == [2]


def test_jobs_are_listed_a_page_at_a_time_and_filtered(browser, ctx, anna):
    for n in range(3):
        add_job(ctx, anna, f"job-{n}")
    browser.post("/w/default/jobs/job-1/stop")
    assert [j["name"] for j in browser.get("/w/default/jobs.json?status=stopped").json()["jobs"]] == ["job-1"]
    assert [j["name"] for j in browser.get("/w/default/jobs.json?search=job-2").json()["jobs"]] == ["job-2"]
    with ctx.db.read() as session:
        newest = session.scalar(select(Job.id).where(Job.name == "job-2"))
    older = browser.get(f"/w/default/jobs.json?before={newest}").json()
    assert [j["name"] for j in older["jobs"]] == ["job-1", "job-0"]
    assert browser.get("/w/default/jobs?status=nonsense").status_code == 422
    assert browser.get("/w/default/jobs?status=&search=").status_code == 200
