"""Imports: what a URL names becomes a version, or an error of one line; a server that dies takes it up again."""

import hashlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from sqlalchemy import update
from test_exports import KEYS, VALUES, add_secrets, no_aws_environment, s3_server
from test_fetching import Canary, serving, web_server

from shoal.core.datasets import DatasetImport, DatasetStatus
from shoal.core.errors import InvalidSpec, MissingExtra, NotAllowedNow, NotFound, ShoalError
from shoal.core.people import SecretSet
from shoal.server.app import create_app
from shoal.server.models.artifacts import Dataset
from shoal.server.services import datasets, import_queue, imports, secrets
from shoal.server.services.import_hub import HubPlace, parse_hub_url
from shoal.server.services.imports import resume_imports, stop_imports
from shoal.testing.server import AppClient, add_person, make_context

DATA = os.urandom(2_000_000)


@pytest.fixture
def web():
    with web_server() as made:
        yield made


@pytest.fixture
def pctx(private_ctx):
    yield private_ctx
    private_ctx.live.closing = True
    stop_imports(private_ctx, timeout_s=20)
    assert not [t for t in threading.enumerate() if t.name.startswith("import")]


@pytest.fixture
def access(pctx):
    return add_person(pctx, "olga@example.org").access()


@contextmanager
def server_on(home, *, private=True):
    """A server on a data directory that may have been another's."""
    ctx = make_context(home, private=private)
    try:
        yield ctx
    finally:
        ctx.live.closing = True
        stop_imports(ctx, timeout_s=20)
        ctx.db.close()


def wait_for(ctx, access, dataset_id, *, timeout_s=30.0):
    """The version once it is no longer being imported; None if it is gone."""
    return until(ctx, access, dataset_id, lambda view: view.status != DatasetStatus.IMPORTING, timeout_s=timeout_s)


def until(ctx, access, dataset_id, condition, *, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            view = datasets.get(ctx, access, dataset_id)
        except NotFound:
            return None
        if condition(view):
            return view
        time.sleep(0.01)
    raise AssertionError(f"still {view}")


def run(ctx, access, url, *, name="data", **more):
    made = imports.begin(ctx, access, DatasetImport(name=name, url=url, **more))
    assert made.status == DatasetStatus.IMPORTING
    done = wait_for(ctx, access, made.id)
    stop_waiting(lambda: not left_behind(ctx), "the work folder stayed")
    return done


def stop_waiting(condition, what, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def left_behind(ctx):
    root = ctx.layout.server_dir / "imports"
    return sorted(p.name for p in root.iterdir()) if root.exists() else []


def contents(ctx, view):
    assert view.status == DatasetStatus.AVAILABLE, view.error
    manifest = ctx.store.get_manifest(view.manifest_id)
    return {f.path: b"".join(ctx.store.get(c.hash) for c in f.chunks) for f in manifest.files}


def error_of(view):
    assert view.status == DatasetStatus.ERROR, view
    assert view.error and "\n" not in view.error
    return view.error


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


# --- http(s) ---


def test_a_file_becomes_a_version(pctx, access, web):
    web.pages["/d/train.csv"] = serving(DATA)
    view = run(pctx, access, f"{web.url}/d/train.csv?sig=SECRET", origin={"note": "mine", "progress": "fake"})
    assert contents(pctx, view) == {"train.csv": DATA}
    assert (view.version, view.files, view.size) == (1, 1, len(DATA))
    assert view.origin == {"kind": "http", "url": f"{web.url}/d/train.csv", "note": "mine"}


@pytest.mark.parametrize(("name", "pack"), [("a.zip", zipped), ("a.tar.gz", tarred), ("A.TGZ", tarred)])
def test_an_archive_becomes_what_is_in_it(pctx, access, web, name, pack):
    files = {"train/1.txt": b"one", "train/2.txt": b"two", "README": b"read me"}
    web.pages[f"/{name}"] = serving(pack(files))
    assert contents(pctx, run(pctx, access, f"{web.url}/{name}")) == files


def test_ignore_files_do_not_count_in_a_dataset(pctx, access, web):
    files = {".gitignore": b"*", "a/.git/config": b"x", "b/x.pyc": b"y", "c": b"z"}
    web.pages["/a.zip"] = serving(zipped(files))
    assert contents(pctx, run(pctx, access, f"{web.url}/a.zip")) == files


def test_the_same_again_makes_no_new_version(pctx, access, web):
    web.pages["/f"] = serving(DATA)
    first = run(pctx, access, f"{web.url}/f")
    assert run(pctx, access, f"{web.url}/f") is None
    assert [v.id for v in datasets.list_datasets(pctx, access)] == [first.id]
    web.pages["/f"] = serving(DATA + b"x")
    assert run(pctx, access, f"{web.url}/f").version == 2


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (lambda r: r.send(404), "nothing at"),
        (lambda r: r.send(403), "not open"),
        (lambda r: r.send(302, Location="file:///etc/passwd"), "only http"),
        (lambda r: r.send(200, b"<html>", Content_Type="text/html; charset=utf-8"), "web page"),
        (serving(zipped({"a": b"x" * 10_000})[:-40]), "damaged"),
        (serving(b"not a zip"), "damaged"),
        (serving(zipped({"bomb": bytes(30 << 20)})), "times the archive's size"),
        (serving(zipped({"../../evil": b"x"})), "leads out"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(pctx, access, web, page, words):
    web.pages["/a.zip"] = page
    assert words in error_of(run(pctx, access, f"{web.url}/a.zip?sig=SECRET"))
    assert "SECRET" not in datasets.list_datasets(pctx, access)[0].error


def test_more_than_the_limit_is_refused(pctx, access, web, monkeypatch):
    monkeypatch.setattr(imports, "max_bytes", lambda _: 1_000_000)
    web.pages["/f"] = serving(DATA)
    assert "larger than the 1.0 MB" in error_of(run(pctx, access, f"{web.url}/f"))
    web.pages["/a.zip"] = serving(zipped({"a": DATA[:600_000], "b": DATA[600_000:1_400_000]})[:999_999])
    error_of(run(pctx, access, f"{web.url}/a.zip"))


def test_a_full_disk_is_told_and_fills_no_further(pctx, access, web, monkeypatch):
    usage = type("Usage", (), {"free": 100_000_000})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    web.pages["/f"] = serving(DATA)
    assert "no room" in error_of(run(pctx, access, f"{web.url}/f"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://h/x", "imported from"),
        ("just-text", "imported from"),
        ("http://127.0.0.1:1/x", "private network"),
        ("http://user:pw@example.org/x", "user name or password"),
        ("s3://bucket/x?endpoint=http://169.254.169.254", "private network"),
        ("hf://models/a/b", "not a dataset"),
    ],
)
def test_a_url_that_can_never_work_is_refused_at_once(ctx, anna, as_anna, url, words):
    answer = as_anna.post("/workspaces/default/datasets/import", {"name": "data", "url": url})
    assert answer.status_code == 422
    assert words in answer.json()["error"]["message"]
    assert datasets.list_datasets(ctx, anna.access()) == []


def test_a_name_that_leads_inside_is_refused_when_it_is_looked_up(ctx, anna):
    canary = Canary()
    view = run(ctx, anna.access(), f"http://localhost:{canary.port}/x")
    assert "private network" in error_of(view)
    assert canary.visits == 0
    canary.close()


def test_the_route_answers_before_the_data_is_there(pctx, web):
    person, go = add_person(pctx, "rita@example.org"), threading.Event()

    def page(request):
        go.wait(20)
        request.send(200, b"x")

    web.pages["/f"] = page
    client = AppClient(create_app(pctx), person.key)
    answer = client.post("/workspaces/default/datasets/import", {"name": "data", "url": f"{web.url}/f"})
    assert (answer.status_code, answer.json()["status"]) == (201, "importing")
    go.set()
    assert wait_for(pctx, person.access(), answer.json()["id"]).status == DatasetStatus.AVAILABLE


# --- what happens meanwhile ---


@pytest.fixture
def held(web):
    """A file of the web server whose first answer halts at 1,500,000 bytes; `more` lets some through, `go` all."""
    web.go, web.more, web.arrived = threading.Event(), threading.Event(), threading.Event()

    def page(request):
        if request.offset is not None or web.go.is_set():
            return serving(DATA)(request)
        request.head(200, Content_Length=str(len(DATA)), ETag='"v1"')
        request.write(DATA[:1_500_000])
        web.arrived.set()
        sent = 1_500_000
        while not web.go.wait(0.01):
            if web.more.is_set() and sent == 1_500_000:
                request.write(DATA[sent : sent + 100_000])
                sent += 100_000
        return request.write(DATA[sent:])

    web.pages["/held"] = page
    yield web
    web.go.set()


def part_of(ctx, dataset_id):
    return ctx.layout.server_dir / "imports" / dataset_id / "download"


def begin_held(ctx, access, held):
    made = imports.begin(ctx, access, DatasetImport(name="data", url=f"{held.url}/held"))
    assert held.arrived.wait(10)
    stop_waiting(lambda: part_of(ctx, made.id).stat().st_size == 1_500_000, "the first part did not arrive")
    return made.id


def test_an_import_that_was_stopped_goes_on_where_it_was(tmp_path, held):
    with server_on(tmp_path) as ctx:
        person = add_person(ctx, "olga@example.org")
        dataset_id = begin_held(ctx, person.access(), held)
        started = time.monotonic()
        ctx.live.close()
        stop_imports(ctx)
        assert time.monotonic() - started < 3
        assert datasets.get(ctx, person.access(), dataset_id).status == DatasetStatus.IMPORTING
    held.go.set()
    with server_on(tmp_path) as ctx:
        assert resume_imports(ctx) == 1
        assert contents(ctx, wait_for(ctx, person.access(), dataset_id)) == {"held": DATA}
        assert [request.offset for request in held.seen] == [None, 1_500_000]
        stop_waiting(lambda: not left_behind(ctx), "the work folder stayed")


_VICTIM = """
import sys, time
from pathlib import Path
from shoal.core.datasets import DatasetImport
from shoal.server.services import imports
from shoal.testing.server import add_person, make_context
ctx = make_context(Path(sys.argv[1]), private=True)
access = add_person(ctx, "olga@example.org").access()
print(imports.begin(ctx, access, DatasetImport(name="data", url=sys.argv[2])).id, access.workspace_id, flush=True)
time.sleep(60)
"""


def test_an_import_of_a_killed_server_is_taken_up(tmp_path, held):
    argv = [sys.executable, "-c", _VICTIM, str(tmp_path), f"{held.url}/held"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as victim:
        dataset_id, workspace_id = victim.stdout.readline().split()
        assert held.arrived.wait(20)
        victim.send_signal(signal.SIGKILL)
    held.go.set()
    stray = tmp_path / "server" / "imports" / "ds_of_nobody"
    stray.mkdir()
    (stray / "download").write_bytes(b"x")
    with server_on(tmp_path) as ctx:
        assert resume_imports(ctx) == 1
        assert not stray.exists()
        access = add_person(ctx, "rita@example.org").access(workspace_id=workspace_id)
        assert contents(ctx, wait_for(ctx, access, dataset_id)) == {"held": DATA}
        stop_waiting(lambda: not left_behind(ctx), "the work folder stayed")
        assert resume_imports(ctx) == 0


@pytest.mark.parametrize("how", ["deleted", "given up"])
def test_a_version_nobody_wants_any_more_is_dropped(pctx, access, held, monkeypatch, how):
    monkeypatch.setattr(imports, "_REPORT_EVERY_S", 0.0)
    dataset_id = begin_held(pctx, access, held)
    if how == "deleted":
        datasets.delete(pctx, access, "data@1")
    else:
        datasets.fail(pctx, access, dataset_id, "given up")
    held.go.set()
    stop_waiting(lambda: not left_behind(pctx), "the work folder stayed")
    found = wait_for(pctx, access, dataset_id)
    assert found is None if how == "deleted" else found.error == "given up"


def test_a_request_that_was_lost_is_told(tmp_path, held):
    with server_on(tmp_path) as ctx:
        person = add_person(ctx, "olga@example.org")
        dataset_id = begin_held(ctx, person.access(), held)
        ctx.live.close()
    (part_of(ctx, dataset_id).parent / "request").unlink()
    with server_on(tmp_path) as ctx:
        resume_imports(ctx)
        assert "ask for it again" in error_of(wait_for(ctx, person.access(), dataset_id))


def test_the_request_is_sealed_on_disk(pctx, access, held):
    made = imports.begin(pctx, access, DatasetImport(name="data", url=f"{held.url}/held?sig=SECRET"))
    sealed = (part_of(pctx, made.id).parent / "request").read_bytes()
    assert b"SECRET" not in sealed
    held.go.set()
    wait_for(pctx, access, made.id)


def test_progress_is_seen_and_written_seldom(pctx, access, held, monkeypatch):
    writes = []
    write = pctx.db.write
    monkeypatch.setattr(pctx.db, "write", lambda work: writes.append(1) or write(work))
    dataset_id = begin_held(pctx, access, held)
    assert len(writes) == 1, "announced, and nothing else within two seconds"
    monkeypatch.setattr(imports, "_REPORT_EVERY_S", 0.0)
    held.more.set()
    seen = until(pctx, access, dataset_id, lambda view: "progress" in view.origin)
    assert 1_500_000 < int(seen.origin["progress"]) < int(seen.origin["total"]) == len(DATA)
    held.go.set()
    done = wait_for(pctx, access, dataset_id)
    assert done.origin == {"kind": "http", "url": f"{held.url}/held"}


def test_no_workspace_takes_all_threads(pctx, web):
    people = [add_person(pctx, f"{name}@example.org").access() for name in ("a", "b")]
    go, waiting, lock = threading.Event(), set(), threading.Lock()

    def page(request):
        with lock:
            waiting.add(request.path)
        go.wait(20)
        request.send(200, request.path.encode())

    made = []
    for number, access in enumerate([people[0]] * 5 + [people[1]] * 3):
        web.pages[f"/{number}"] = page
        request = DatasetImport(name=f"d{number}", url=f"{web.url}/{number}")
        made.append((access, imports.begin(pctx, access, request).id))
    stop_waiting(lambda: len(waiting) == import_queue.THREADS, "too few run")
    assert waiting == {"/0", "/1", "/5", "/6"}
    go.set()
    for access, dataset_id in made:
        assert wait_for(pctx, access, dataset_id).status == DatasetStatus.AVAILABLE


def test_unfinished_imports_are_limited(pctx, access, held, monkeypatch):
    monkeypatch.setattr(imports, "MAX_UNFINISHED", 1)
    begin_held(pctx, access, held)
    with pytest.raises(NotAllowedNow, match="unfinished"):
        imports.begin(pctx, access, DatasetImport(name="more", url=f"{held.url}/held"))


def test_a_bug_is_logged_and_told_as_one(pctx, access, web, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("boom")

    monkeypatch.setattr(imports, "pack_tree", broken)
    web.pages["/f"] = serving(DATA)
    assert "broke inside Shoal" in error_of(run(pctx, access, f"{web.url}/f"))
    assert "boom" in caplog.text


def test_a_collection_that_takes_fresh_chunks_costs_only_time(pctx, access, web, monkeypatch):
    web.pages["/f"] = serving(DATA)
    commit, lost = datasets.commit, []

    def commit_late(ctx, access, dataset_id, manifest):
        if not lost:
            lost.append(1)
            ctx.store.delete([c.hash for f in manifest.files for c in f.chunks])
        return commit(ctx, access, dataset_id, manifest)

    monkeypatch.setattr(datasets, "commit", commit_late)
    assert contents(pctx, run(pctx, access, f"{web.url}/f")) == {"f": DATA}


# --- the Hub ---


class FakeHub:
    """The part of the Hub's HTTP API that imports use: revisions, listings by page, small files here, large ones elsewhere."""

    COMMIT = "a" * 40

    def __init__(self, web, cdn):
        self.web, self.cdn, self.files, self.large, self.token, self.page_size = web, cdn, {}, set(), None, 2
        self.repo, self.gated, self.wrong = "org/demo", False, set()
        web.server.RequestHandlerClass.do_GET = self._dispatch(web)

    def _dispatch(self, web):
        hub = self

        def do_get(handler):
            from test_fetching import Request

            request = Request(handler)
            web.seen.append(request)
            try:
                hub.answer(request)
            except OSError:
                handler.close_connection = True

        return do_get

    def answer(self, request):
        parts = urlsplit(request.path)
        path = unquote(parts.path)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return request.send(401, b"{}", X_Error_Code="RepoNotFound")
        if path == f"/api/datasets/{self.repo}/revision/main" or path.endswith("/revision/v1/x"):
            return request.send(200, json.dumps({"sha": self.COMMIT}).encode())
        if path.startswith(f"/api/datasets/{self.repo}/revision/"):
            return request.send(404, b"{}", X_Error_Code="RevisionNotFound")
        tree = f"/api/datasets/{self.repo}/tree/{self.COMMIT}"
        if path.startswith(tree):
            return self._list(request, path.removeprefix(tree).strip("/"), parse_qs(parts.query))
        resolve = f"/datasets/{self.repo}/resolve/{self.COMMIT}/"
        if path.startswith(resolve):
            return self._file(request, path.removeprefix(resolve))
        return request.send(404, b"{}", X_Error_Code="RepoNotFound")

    def _list(self, request, folder, query):
        inside = sorted(f for f in self.files if not folder or f.startswith(f"{folder}/"))
        entries = [self._entry(f) for f in inside]
        if query["recursive"] == ["false"]:
            depth = len(folder) + 1 if folder else 0
            tops = {f[depth:].partition("/")[0] for f in inside if "/" in f[depth:]}
            above = f"{folder}/" if folder else ""
            entries = [self._entry(f) for f in inside if "/" not in f[depth:]]
            entries += [{"type": "directory", "path": above + top, "oid": "0" * 40, "size": 0} for top in sorted(tops)]
        at = int(query.get("cursor", ["0"])[0])
        more = {}
        if at + self.page_size < len(entries):
            address = f"https://huggingface.co{request.path.partition('&cursor')[0]}&cursor={at + self.page_size}"
            more = {"Link": f'<{address}>; rel="next"'}
        request.send(200, json.dumps(entries[at : at + self.page_size]).encode(), **more)

    def _entry(self, path):
        data = self.files[path]
        entry = {"type": "file", "path": path, "size": len(data)}
        if path in self.large:
            entry["oid"] = "1" * 40
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        else:
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return entry

    def _file(self, request, path):
        if self.gated:
            return request.send(403, b"", X_Error_Code="GatedRepo")
        data = self.files[path]
        if path in self.wrong:
            data = bytes(len(data))
        if path not in self.large:
            return request.send(200, data, ETag=f'"{path}"')
        self.cdn.pages[f"/blob/{path}"] = serving(data, etag=f'"{path}"')
        return request.send(302, Location=f"{self.cdn.url}/blob/{path}?X-Signature=SECRET")


@pytest.fixture
def hub(web, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with web_server() as cdn:
        made = FakeHub(web, cdn)
        made.files = {
            ".gitattributes": b"*.parquet filter=lfs",
            "README.md": b"# demo",
            "data/train-0.parquet": DATA,
            "data/train-1.parquet": DATA[::-1],
            "data/sub dir/é#1.txt": b"odd name",
            "empty.txt": b"",
        }
        made.large = {"data/train-0.parquet", "data/train-1.parquet"}
        yield made


def test_a_hub_dataset_comes_whole_with_its_commit(pctx, access, hub):
    view = run(pctx, access, "hf://datasets/org/demo")
    assert contents(pctx, view) == hub.files
    assert view.origin == {"kind": "hf", "url": "hf://datasets/org/demo", "revision": FakeHub.COMMIT}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data", {"train-0.parquet", "train-1.parquet", "sub dir/é#1.txt"}),
        ("@v1%2Fx/data/sub dir", {"é#1.txt"}),
        ("@main/data/train-1.parquet", {"train-1.parquet"}),
        ("/README.md", {"README.md"}),
    ],
)
def test_a_folder_or_file_of_it_comes_alone(pctx, access, hub, path, expected):
    assert contents(pctx, run(pctx, access, f"hf://datasets/org/demo{path}")).keys() == expected


def test_the_token_goes_to_the_hub_and_nowhere_else(pctx, access, hub, caplog):
    caplog.set_level(logging.DEBUG)
    hub.token = "hf_planted_token"
    secrets.set_secret(pctx, access, SecretSet(name="my-hub", value="hf_planted_token"))
    assert "private" in error_of(run(pctx, access, "hf://datasets/org/demo"))
    view = run(pctx, access, "hf://datasets/org/demo", credentials={"HF_TOKEN": "my-hub"})
    assert contents(pctx, view) == hub.files
    assert hub.cdn.seen and not any(r.headers["Authorization"] for r in hub.cdn.seen)
    assert "hf_planted_token" not in caplog.text + view.model_dump_json()


def test_the_environments_token_counts_on_a_private_server_only(ctx, anna, pctx, access, hub, monkeypatch):
    hub.token = "hf_own"
    monkeypatch.setenv("HF_TOKEN", "hf_own")
    assert contents(pctx, run(pctx, access, "hf://datasets/org/demo/README.md"))
    assert "private" in error_of(run(ctx, anna.access(), "hf://datasets/org/demo/README.md"))


def test_a_shared_server_may_use_the_operators_mirror_but_not_be_sent_inside_by_it(ctx, anna, hub):
    assert contents(ctx, run(ctx, anna.access(), "hf://datasets/org/demo/README.md"))
    assert "private network" in error_of(run(ctx, anna.access(), "hf://datasets/org/demo/data/train-0.parquet"))
    assert hub.cdn.seen == []


def test_bytes_that_do_not_match_the_hubs_digest_are_not_taken(pctx, access, hub):
    for name in ("README.md", "data/train-0.parquet"):
        hub.wrong = {name}
        assert f"{name} of hf://datasets/org/demo does not match" in error_of(
            run(pctx, access, "hf://datasets/org/demo")
        )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://datasets/org/absent", "There is no hf://datasets/org/absent on the Hub, or it is private"),
        ("hf://datasets/org/demo@nope", "no revision 'nope'"),
        ("hf://datasets/org/demo/nope.txt", "no file or folder 'nope.txt'"),
    ],
)
def test_what_the_hub_does_not_have_is_named(pctx, access, hub, url, words):
    assert words in error_of(run(pctx, access, url))


def test_a_gated_dataset_says_what_to_do(pctx, access, hub):
    hub.gated = True
    assert "accept its terms" in error_of(run(pctx, access, "hf://datasets/org/demo"))


def test_hub_urls_are_read_as_the_hub_means_them():
    assert parse_hub_url("hf://datasets/a/b") == HubPlace("a/b", "main", "")
    assert parse_hub_url("hf://datasets/a/b@v1/x/y.csv") == HubPlace("a/b", "v1", "x/y.csv")
    assert parse_hub_url("hf://datasets/a/b@refs%2Fpr%2F1/x") == HubPlace("a/b", "refs/pr/1", "x")
    assert parse_hub_url("hf://datasets/a/b@refs/convert/parquet/x") == HubPlace("a/b", "refs/convert/parquet", "x")
    for bad in (
        "hf://a/b",
        "hf://datasets/a",
        "hf://datasets/../b",
        "hf://datasets/a/b/../c",
        "hf://datasets/a/b/x//y",
    ):
        with pytest.raises(InvalidSpec):
            parse_hub_url(bad)


# --- S3 ---

pytest.importorskip("obstore", reason="S3 tests need the extra 's3'")
pytest.importorskip("moto", reason="S3 tests need moto[server]")


@pytest.fixture(scope="module")
def one_server():
    with s3_server() as made:
        yield made


@pytest.fixture
def s3(one_server, pctx, access, monkeypatch, request):
    no_aws_environment(monkeypatch)
    monkeypatch.setattr("shoal.server.services.import_s3._FIRST_WAIT_S", 0.01)
    one_server.clean(f"i{abs(hash(request.node.nodeid)):x}")
    add_secrets(pctx, access)
    return one_server


BIG = os.urandom(1 << 20) * 20


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


def test_errors_of_a_database_leave_the_import_for_the_next_start(tmp_path, web, monkeypatch):
    web.pages["/f"] = lambda request: request.send(404)
    with server_on(tmp_path) as ctx:
        person = add_person(ctx, "olga@example.org")

        def full(*_):
            raise ShoalError("the disk is full")

        monkeypatch.setattr(datasets, "fail", full)
        dataset_id = imports.begin(ctx, person.access(), DatasetImport(name="data", url=f"{web.url}/f")).id
        stop_waiting(lambda: web.seen, "nobody asked")
        ctx.live.closing = True
        stop_imports(ctx)
        assert left_behind(ctx) == [dataset_id]
    monkeypatch.undo()
    with server_on(tmp_path) as ctx:
        assert resume_imports(ctx) == 1
        assert "nothing at" in error_of(wait_for(ctx, person.access(), dataset_id))


def test_versions_of_other_states_are_left_alone_at_start(pctx, access, web):
    web.pages["/f"] = serving(DATA)
    view = run(pctx, access, f"{web.url}/f")
    for status in ("uploading", "error"):
        pctx.db.write(lambda s, status=status: s.execute(update(Dataset).values(status=status)) and None)
        assert resume_imports(pctx) == 0
        assert datasets.get(pctx, access, view.id).status == status
