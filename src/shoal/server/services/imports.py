"""Datasets the server fetches by itself: asked for, brought here in the background, committed like any other.

The request waits sealed in server/imports/<dataset id>/ with all that has arrived of it, so that a server that was stopped or
killed takes it up at its next start. `resume_imports` and `stop_imports` are what the server calls.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.datasets import DatasetBegin, DatasetImport, DatasetStatus, DatasetView
from shoal.core.errors import Corrupt, Internal, NotAllowedNow, NotFound, Refused, ShoalError
from shoal.core.people import Role
from shoal.server.context import Context
from shoal.server.models.artifacts import Dataset
from shoal.server.models.people import Workspace
from shoal.server.policy import Access, Principal
from shoal.server.services import chunks, datasets, secrets
from shoal.server.services.import_guard import Stopped
from shoal.server.services.import_part import check_room
from shoal.server.services.import_queue import import_queue
from shoal.server.services.import_sources import open_source
from shoal.store.files import disk_errors
from shoal.store.manifest import chunk_hashes
from shoal.store.materialize import remove_tree
from shoal.store.pack import PackedTree, pack_tree
from shoal.store.transfer import upload

logger = logging.getLogger(__name__)

MAX_UNFINISHED = 50
"""Imports of one workspace that may wait or run at a time."""
_REPORT_EVERY_S = 2.0
_OWN_AT_ONCE = 10_000
_COMMITS = 5
_LIFE = ("progress", "total", "notes")
"""Parts of an origin that only we write."""


def begin(ctx: Context, access: Access, request: DatasetImport) -> DatasetView:
    """Announce the version and start fetching it. What can never work is refused here, the rest becomes its status."""
    source = open_source(ctx, request.url, max_bytes=max_bytes(ctx))
    source.check(request.credentials)
    secrets.open_secrets(ctx, access.workspace_id, request.credentials)  # they must exist
    _refuse_too_many(ctx, access)
    origin = {k: v for k, v in request.origin.items() if k not in _LIFE} | {"kind": source.kind, "url": source.shown}
    made = datasets.begin(ctx, access, DatasetBegin(name=request.name, origin=origin), DatasetStatus.IMPORTING)
    try:
        _save_request(ctx, access.workspace_id, made.id, request)
    except (ShoalError, OSError) as error:
        remove_tree(_root(ctx) / made.id)
        datasets.fail(ctx, access, made.id, "The server could not start the import.")
        raise (
            error if isinstance(error, ShoalError) else Refused(f"The import cannot start: {error.strerror}.")
        ) from error
    _queue(ctx, access.workspace_id, made.id)
    return made


def resume_imports(ctx: Context) -> int:
    """At start: queue what was under way when the server ended, and remove what is left of everything else."""
    with ctx.db.read() as session:
        query = select(Dataset).where(Dataset.status == DatasetStatus.IMPORTING.value).order_by(Dataset.id)
        rows = [(row.workspace_id, row.id) for row in session.scalars(query)]
    unfinished = {dataset_id for _, dataset_id in rows}
    if _root(ctx).is_dir():
        for folder in _root(ctx).iterdir():
            if folder.name not in unfinished:
                remove_tree(folder)
    for workspace_id, dataset_id in rows:
        _queue(ctx, workspace_id, dataset_id)
    return len(rows)


def stop_imports(ctx: Context, timeout_s: float = 5.0) -> None:
    """At stop, once `ctx.live.closing` is set and before the database closes. What is not done is taken up at the next start."""
    if not import_queue(ctx).stop(timeout_s):
        logger.warning("an import did not stop in time; it is taken up again at the next start")


def max_bytes(ctx: Context) -> int:
    return ctx.settings.max_import_gb * 1_000_000_000


class _Gone(Exception):
    """Somebody deleted the version, or gave it up, while it was being fetched."""


def _queue(ctx: Context, workspace_id: str, dataset_id: str) -> None:
    import_queue(ctx).add(workspace_id, lambda: _run(ctx, dataset_id))


def _run(ctx: Context, dataset_id: str) -> None:
    if ctx.live.closing:
        return
    work = _root(ctx) / dataset_id
    try:
        with ctx.db.read() as session:
            access = _access(session, dataset_id)
        with _failing(ctx, access, dataset_id):
            _import(ctx, access, dataset_id, work)
    except (Stopped, _Unfinished):
        return
    except _Gone:
        logger.info("import %s is no longer wanted", dataset_id)
    remove_tree(work)


class _Unfinished(Exception):
    """It could not even be recorded that the import failed: it stays as it is until the next start."""


@contextmanager
def _failing(ctx: Context, access: Access, dataset_id: str) -> Iterator[None]:
    """An error becomes the version's status, in one line."""
    try:
        yield
        return
    except (Stopped, _Gone):
        raise
    except ShoalError as error:
        reason = error.message
    except Exception as error:
        if ctx.live.closing:
            raise Stopped from error
        logger.exception("import %s failed", dataset_id)
        reason = str(Internal())
    line = " ".join(reason.split())[:1000]
    logger.info("import %s failed: %s", dataset_id, line)
    try:
        datasets.fail(ctx, access, dataset_id, line)
    except (NotFound, NotAllowedNow):
        return
    except ShoalError as error:
        raise _Unfinished from error


def _import(ctx: Context, access: Access, dataset_id: str, work: Path) -> None:
    request = _load_request(ctx, access.workspace_id, dataset_id)
    source = open_source(ctx, request.url, max_bytes=max_bytes(ctx))
    keys = secrets.open_secrets(ctx, access.workspace_id, request.credentials)
    report = _Report(ctx, dataset_id)
    with disk_errors(work):
        found = source.bring(work, keys, report, report.expect)
        packed = pack_tree(work / "tree", ignore=False, progress=report.look)
        if packed.skipped:
            found["notes"] = "; ".join([*filter(None, [found.get("notes")]), *packed.skipped])
        report.finish({name: text[:500] for name, text in found.items()})
        _commit(ctx, access, dataset_id, packed, report)


def _commit(ctx: Context, access: Access, dataset_id: str, packed: PackedTree, report: _Report) -> None:
    hashes = list(chunk_hashes(packed.manifest))
    if not ctx.settings.store:  # it is on this machine's disk
        lacking = ctx.store.missing(hashes)
        check_room(ctx.layout.store_dir, sum(packed.where[name][2] for name in lacking))
    for _ in range(_COMMITS):
        upload(packed, ctx.store, progress=report.look)
        for at in range(0, len(hashes), _OWN_AT_ONCE):
            chunks.own(ctx, access.workspace_id, hashes[at : at + _OWN_AT_ONCE])
        try:
            if not datasets.commit(ctx, access, dataset_id, packed.manifest).missing:
                return
        except NotFound as error:
            if "missing" not in error.details:
                raise
        # A collection took chunks that were there when we looked: send them again.
    raise Refused("The store lost chunks while they were being written. Try again.")


class _Report:
    """Counts bytes, tells the database every two seconds, and ends the work when it is not wanted any more."""

    def __init__(self, ctx: Context, dataset_id: str):
        self._ctx, self._dataset_id = ctx, dataset_id
        self._lock = threading.Lock()
        self._done, self._total, self._told_at = 0, 0, time.monotonic()
        self._found: dict[str, str] | None = None

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._look()

    def look(self, _: int) -> None:
        """For work whose bytes were counted before."""
        with self._lock:
            self._look()

    def expect(self, total: int) -> None:
        with self._lock:
            self._done, self._total = 0, total

    def finish(self, found: dict[str, str]) -> None:
        """All has arrived: from here on its record is what it will stay."""
        with self._lock:
            self._found = found
            self._tell(found)

    def _look(self) -> None:
        if self._ctx.live.closing:
            raise Stopped
        if time.monotonic() - self._told_at >= _REPORT_EVERY_S:
            total = {"total": str(self._total)} if self._total else {}
            self._tell({"progress": str(self._done), **total} if self._found is None else self._found)
            self._told_at = time.monotonic()

    def _tell(self, found: dict[str, str]) -> None:
        def work(session: Session) -> bool:
            row = session.get(Dataset, self._dataset_id)
            if row is None or row.status != DatasetStatus.IMPORTING:
                return False
            row.origin = {k: v for k, v in row.origin.items() if k not in _LIFE} | found
            return True

        if not self._ctx.db.write(work):
            raise _Gone


def _refuse_too_many(ctx: Context, access: Access) -> None:
    query = select(func.count()).where(
        Dataset.workspace_id == access.workspace_id, Dataset.status == DatasetStatus.IMPORTING.value
    )
    with ctx.db.read() as session:
        if (session.scalar(query) or 0) >= MAX_UNFINISHED:
            raise NotAllowedNow(
                f"{MAX_UNFINISHED} imports of this workspace are unfinished; wait for some.", hint="shoal dataset list"
            )


def _access(session: Session, dataset_id: str) -> Access:
    """In the name of whoever asked for it, with no more than it takes."""
    row = session.get(Dataset, dataset_id)
    if row is None or row.status != DatasetStatus.IMPORTING:
        raise _Gone
    principal = Principal("", row.created_by, False, frozenset(), dataset_id, row.workspace_id)
    return Access(principal, row.workspace_id, session.get_one(Workspace, row.workspace_id).name, Role.MEMBER)


def _root(ctx: Context) -> Path:
    return ctx.layout.server_dir / "imports"


def _save_request(ctx: Context, workspace_id: str, dataset_id: str, request: DatasetImport) -> None:
    """Sealed: a URL may carry a signature in its query."""
    body = json.dumps({"url": request.url, "credentials": request.credentials})
    folder = _root(ctx) / dataset_id
    with disk_errors(folder):
        folder.mkdir(parents=True, mode=0o700)
        fd = os.open(folder / "request", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(ctx.vault.seal(body, bound_to=_bond(workspace_id, dataset_id)))
            file.flush()
            os.fsync(file.fileno())
        for made in (folder, _root(ctx)):
            _sync_folder(made)


def _load_request(ctx: Context, workspace_id: str, dataset_id: str) -> DatasetImport:
    try:
        sealed = (_root(ctx) / dataset_id / "request").read_bytes()
        body = json.loads(ctx.vault.open(sealed, bound_to=_bond(workspace_id, dataset_id)))
        return DatasetImport(name="x", url=body["url"], credentials=body["credentials"])
    except (OSError, ValueError, KeyError, Corrupt):
        raise Refused("The server ended before the import had begun; ask for it again.") from None


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def _bond(workspace_id: str, dataset_id: str) -> str:
    return f"{workspace_id}/import/{dataset_id}"
