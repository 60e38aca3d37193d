"""Helpers for tests of imports: servers that import, the wait for a version, and its result."""

import io
import os
import tarfile
import time
import zipfile
from contextlib import contextmanager

from shoal.core.datasets import DatasetImport, DatasetStatus
from shoal.core.errors import NotFound
from shoal.server.artifacts import datasets
from shoal.server.artifacts.imports import service as imports
from shoal.server.artifacts.imports.service import stop_imports
from shoal.testing.patience import patient
from shoal.testing.server import make_context

DATA = os.urandom(2_000_000)


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
    deadline = time.monotonic() + patient(timeout_s)
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
    deadline = time.monotonic() + patient(timeout_s)
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
