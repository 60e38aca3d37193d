"""Imports, what happens meanwhile: stops, kills, deletions, limits. A server that dies takes them up again."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from importing import DATA, contents, error_of, left_behind, run, server_on, stop_waiting, until, wait_for
from local_web import serving
from sqlalchemy import update

from shoal.core.datasets import DatasetImport, DatasetStatus
from shoal.core.errors import NotAllowedNow, ShoalError
from shoal.server.artifacts import datasets
from shoal.server.artifacts.imports import queue as import_queue
from shoal.server.artifacts.imports import service as imports
from shoal.server.artifacts.imports.service import resume_imports, stop_imports
from shoal.server.models.datasets import Dataset
from shoal.testing.server import add_person


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
from shoal.server.artifacts.imports import service as imports
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
        assert "start the import again" in error_of(wait_for(ctx, person.access(), dataset_id))


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
