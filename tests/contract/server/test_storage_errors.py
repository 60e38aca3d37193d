"""A sick, locked or full disk is nobody's mistake: it is answered with 5xx, and callers are told to come back."""

import errno
import os
import sqlite3

import pytest
from metriclines import Sender, add_attempt
from sqlalchemy import event, update

from shoal.core.schema import utcnow
from shoal.server.models.jobs import Node
from shoal.server.write_patience import WritePatience
from shoal.testing.server import AppClient, add_job, make_app

LINE = {"t": 1.0, "r": 0, "e": "out", "m": "hello"}


@pytest.fixture
def job(ctx, anna):
    return add_job(ctx, anna)


@pytest.fixture
def agent(ctx, app, job):
    return Sender(app, add_attempt(ctx, job)[0])


@pytest.fixture
def break_writes(ctx):
    """Has SQLite fail with this text from now on, or no longer."""
    text = None

    def fail(cursor, statement, *_):
        if text and statement.startswith(("INSERT", "UPDATE", "DELETE")):
            raise sqlite3.OperationalError(text)

    def set_text(new):
        nonlocal text
        text = new

    event.listen(ctx.db.writer, "do_execute", fail)
    yield set_text
    event.remove(ctx.db.writer, "do_execute", fail)


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("disk I/O error", 503, "storage_failing"),
        ("attempt to write a readonly database", 503, "storage_failing"),
        ("unable to open database file", 503, "storage_failing"),
        ("database disk image is malformed", 503, "storage_failing"),
        ("database is locked", 503, "unreachable"),
        ("database or disk is full", 507, "storage_full"),
    ],
)
def test_a_segment_the_database_cannot_take_may_be_sent_again(agent, break_writes, text, status, code):
    break_writes(text)
    answer = agent.post(0, [LINE], stream="log")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert int(answer.headers["Retry-After"]) > 0
    break_writes(None)
    assert agent.post(0, [LINE], stream="log").json() == {"next_seq": 1}


@pytest.mark.parametrize(
    ("number", "status"), [(errno.EIO, 503), (errno.EROFS, 503), (errno.EMFILE, 503), (errno.ENOSPC, 507), (errno.EDQUOT, 507)]
)  # fmt: skip
def test_a_disk_that_fails_under_the_store_is_no_bug(ctx, as_anna, monkeypatch, number, status):
    def fails(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ctx.store, "put_stored", fails)
    answer = as_anna.request("POST", "/workspaces/default/store/chunks", content=b"x")
    assert answer.status_code == status
    assert int(answer.headers["Retry-After"]) > 0


def test_a_request_that_changed_nothing_says_so_and_may_be_sent_again_whatever_its_method(ctx, anna, break_writes):
    client = AppClient(WritePatience(make_app(ctx), 5.0), anna.key)
    body = {"name": "k", "scopes": ["read"]}
    break_writes("database or disk is full")
    refused = client.post("/keys", body)
    assert (refused.status_code, refused.json()["error"]["details"]) == (507, {"unchanged": True})
    ctx.db.distrusted = "fsync failed"  # the transaction may be on the disk or not
    assert "unchanged" not in client.post("/keys", body).json()["error"]["details"]
    ctx.db.distrusted = None
    break_writes(None)
    assert client.post("/keys", body).status_code == 201


def test_a_request_that_has_written_already_does_not_say_that_nothing_was_changed(ctx, anna, break_writes, monkeypatch):
    def writes_twice(*_, **__):
        ctx.db.write(lambda session: None)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("shoal.server.routers.keys.keys.create_key", writes_twice)
    client = AppClient(WritePatience(make_app(ctx), 5.0), anna.key)
    refused = client.post("/keys", {"name": "k", "scopes": ["read"]})
    assert (refused.status_code, refused.json()["error"]["details"]) == (503, {})


def test_what_a_lost_node_wrote_later_is_refused_and_the_job_says_so(ctx, app, as_anna, job, agent):
    lost = update(Node).values(state="lost", ended_at=utcnow())
    ctx.db.write(lambda session: session.execute(lost) and None)
    later = {**LINE, "t": utcnow().timestamp() + 3600}
    for _ in range(2):
        assert agent.post(0, [later], stream="log").json()["error"]["code"] == "fenced"
    events = as_anna.get("/workspaces/default/jobs/a-job").json()["events"]
    assert [e["message"] for e in events if e["kind"] == "late_records"] == [
        "node 0 of attempt 1 kept running after it was given up; its later records are discarded"
    ]
