"""Imports from S3: everything below a prefix, also when the service fails, with the keys of whom it is for."""

import logging
import os
import sys

import pytest
from importing import contents, error_of, run, server_on, stop_waiting, wait_for
from local_s3 import KEYS, VALUES, add_secrets

from shoal.core.datasets import DatasetImport
from shoal.core.errors import InvalidSpec, MissingExtra, NotFound
from shoal.server.artifacts import datasets
from shoal.server.artifacts.imports import service as imports
from shoal.server.artifacts.imports.service import resume_imports
from shoal.testing.extras import needs
from shoal.testing.server import add_person

pytestmark = needs("obstore", "moto")

BIG = os.urandom(1 << 20) * 20


@pytest.fixture
def s3(s3, pctx, access):
    add_secrets(pctx, access)
    return s3


def test_everything_below_a_prefix_comes(pctx, access, s3):
    files = {"a.txt": b"a", "deep/er/b.bin": BIG, "deep/é #1 %.txt": b"odd", "empty": b""}
    for path, data in files.items():
        s3.put(f"some/prefix/{path}", data)
    s3.put("some/prefix/folder/", b"")
    s3.put("some/prefix/folder/x", b"x")
    s3.put("some/prefixed/not-this", b"no")
    view = run(pctx, access, s3.place("some/prefix"), credentials=KEYS)
    assert contents(pctx, view) == files | {"folder/x": b"x"}
    assert view.origin == {"kind": "s3", "url": s3.place("some/prefix")}


def test_a_single_object_and_a_whole_bucket_come(pctx, access, s3):
    s3.put("some/one.csv", b"1,2")
    s3.put("two.csv", b"3,4")
    assert contents(pctx, run(pctx, access, s3.place("some/one.csv"), credentials=KEYS)) == {"one.csv": b"1,2"}
    whole = run(pctx, access, s3.place(), credentials=KEYS)
    assert contents(pctx, whole) == {"some/one.csv": b"1,2", "two.csv": b"3,4"}


def test_errors_that_pass_do_not_show(pctx, access, s3):
    s3.put("p/a", BIG)
    left = [500, "drop", 503, "drop", 500]
    s3.fault = lambda method, path: left.pop() if left else None
    assert contents(pctx, run(pctx, access, s3.place("p"), credentials=KEYS)) == {"a": BIG}
    assert not left


def test_a_service_that_keeps_failing_is_named(pctx, access, s3):
    s3.put("p/a", b"a")
    s3.fault = lambda method, path: 500 if "list-type" not in path else None
    assert "S3 service" in error_of(run(pctx, access, s3.place("p"), credentials=KEYS))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["p/a//b"], "cannot be the path of a file"),
        (["p/a\\b"], "cannot be the path of a file"),
        (["p/a", "p/a/b"], "both 'a' and files below it"),
        ([], "nothing at s3://"),
    ],
)
def test_what_can_be_no_folder_is_refused(pctx, access, s3, keys, words):
    for key in keys:
        s3.put(key, b"x")
    assert words in error_of(run(pctx, access, s3.place("p"), credentials=KEYS))


def test_an_object_that_changes_meanwhile_is_never_mixed(pctx, access, s3):
    new = bytes(reversed(BIG))
    s3.put("p/a", BIG)
    changed = []

    def fault(method, path):
        if method == "GET" and "list-type" not in path and not changed and s3.count("GET") >= 3:
            changed.append(1)
            s3.put("p/a", new)

    s3.fault = fault
    assert contents(pctx, run(pctx, access, s3.place("p"), credentials=KEYS)) == {"a": new}
    assert changed


def test_an_interrupted_import_fetches_only_what_lacks(tmp_path, pctx, access, s3):
    s3.put("p/a", b"a")
    s3.put("p/b", BIG)
    home = tmp_path / "home"

    def fetched(name):
        return [h.get("range") for m, p, h in s3.seen if m == "GET" and p.endswith(f"/p/{name}")]

    with server_on(home) as ctx:
        person = add_person(ctx, "olga@example.org")
        add_secrets(ctx, person.access())

        def fault(method, path):
            if len(fetched("b")) == 2:
                ctx.live.closing = True

        s3.fault = fault
        request = DatasetImport(name="data", url=s3.place("p"), credentials=KEYS)
        dataset_id = imports.begin(ctx, person.access(), request).id
        stop_waiting(lambda: ctx.live.closing, "never got so far")
    s3.fault = lambda method, path: None
    s3.seen.clear()
    with server_on(home) as ctx:
        resume_imports(ctx)
        assert contents(ctx, wait_for(ctx, person.access(), dataset_id)) == {"a": b"a", "b": BIG}
    assert fetched("a") == []
    assert not any((r or "bytes=0-").startswith("bytes=0-") for r in fetched("b"))


def test_keys_are_used_and_told_to_nobody(pctx, access, s3, caplog):
    caplog.set_level(logging.DEBUG)
    s3.put("p/a", b"a")
    view = run(pctx, access, s3.place("p"), credentials=KEYS)
    assert contents(pctx, view) == {"a": b"a"}
    assert all(
        "Credential=AKIDPLANTED/" in {k.lower(): v for k, v in h.items()}["authorization"] for _, _, h in s3.seen
    )
    s3.fault = lambda method, path: 403
    error = error_of(run(pctx, access, s3.place("p"), credentials=KEYS))
    assert "refused the given credentials" in error
    assert not any(value in caplog.text + error + view.model_dump_json() for value in VALUES.values())


@pytest.mark.parametrize(
    ("url", "credentials", "kind"),
    [
        ("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "s3-id"}, InvalidSpec),
        ("s3://bucket/x", {"HF_TOKEN": "s3-id"}, InvalidSpec),
        ("s3://bucket/x", dict.fromkeys(KEYS, "absent"), NotFound),
        ("hf://datasets/a/b", KEYS, InvalidSpec),
        ("https://example.org/x", KEYS, InvalidSpec),
    ],
)
def test_credentials_that_do_not_fit_are_refused_at_once(pctx, access, url, credentials, kind):
    with pytest.raises(kind):
        imports.begin(pctx, access, DatasetImport(name="data", url=url, credentials=credentials))
    assert datasets.list_datasets(pctx, access) == []


def test_without_the_extra_it_says_what_to_install(pctx, access, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match="extra 's3'"):
        imports.begin(pctx, access, DatasetImport(name="data", url="s3://bucket/x"))


def test_a_shared_servers_keys_are_not_its_users(ctx, anna, s3, monkeypatch):
    """Its own endpoint and keys are for its store; a user's s3:// goes to the world, unsigned, and here nowhere."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("10.0.0.1", 443))])
    assert "private network" in error_of(run(ctx, anna.access(), f"s3://{s3.bucket}/p"))
    assert s3.seen == []
