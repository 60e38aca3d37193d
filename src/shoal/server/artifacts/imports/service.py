"""Imports: datasets that the server fetches itself, in the background, and commits like any other.

The request is stored encrypted in server/imports/<dataset id>/ with all that has been fetched, so that a server that was
stopped or killed continues at its next start. The server calls `resume_imports` and `stop_imports`.
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
from shoal.core.durable import flush
from shoal.core.errors import Corrupt, Internal, NotAllowedNow, NotFound, Refused, ShoalError
from shoal.core.people import Role
from shoal.server.artifacts import datasets
from shoal.server.artifacts.commit import store_packed
from shoal.server.artifacts.imports.partial_file import check_room
from shoal.server.artifacts.imports.queue import import_queue
from shoal.server.artifacts.imports.sources import open_source
from shoal.server.context import Context
from shoal.server.models.datasets import Dataset
from shoal.server.models.workspaces import Workspace
from shoal.server.people import secrets
from shoal.server.policy import Access, Principal
from shoal.server.ssrf_guard import Stopped
from shoal.store.files import disk_errors
from shoal.store.manifest import chunk_hashes
from shoal.store.materialize import remove_tree
from shoal.store.pack import PackedTree, pack_tree

logger = logging.getLogger(__name__)

MAX_UNFINISHED = 50
"""Most unfinished imports of one workspace."""
_REPORT_EVERY_S = 2.0
_OWN_KEYS = ("progress", "total", "notes")
"""Keys of a dataset's origin that only the import writes."""


def begin(ctx: Context, access: Access, request: DatasetImport) -> DatasetView:
    """Announce a version and start fetching it. Raises for what can never work; later errors become the version's status."""
    source = open_source(ctx, request.url, max_bytes=max_bytes(ctx))
    source.check(request.credentials)
    secrets.open_secrets(ctx, access.workspace_id, request.credentials)  # they must exist
    _refuse_too_many(ctx, access)
    origin = {k: v for k, v in request.origin.items() if k not in _OWN_KEYS} | {
        "kind": source.kind,
        "url": source.display_url,
    }
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
    """Queue the imports that a stop of the server interrupted and remove the files of all others; called at start."""
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
    """Stop the running imports; they continue at the next start.

    Call it after `ctx.live.closing` is set, before the database closes.
    """
    if not import_queue(ctx).stop(timeout_s):
        logger.warning("an import did not stop in time; it continues at the next start")


def max_bytes(ctx: Context) -> int:
    return ctx.settings.max_import_gb * 1_000_000_000


class _Gone(Exception):
    """The version was deleted or replaced while it was being fetched."""


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
    """The failure of an import could not be stored; the import is repeated at the next start."""


@contextmanager
def _failing(ctx: Context, access: Access, dataset_id: str) -> Iterator[None]:
    """Store an error as the version's status, in one line."""
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
        packed = pack_tree(work / "tree", ignore=False, progress=report.tick)
        if packed.skipped:
            found["notes"] = "; ".join([*filter(None, [found.get("notes")]), *packed.skipped])
        report.finish({name: text[:500] for name, text in found.items()})
        _commit(ctx, access, dataset_id, packed, report)


def _commit(ctx: Context, access: Access, dataset_id: str, packed: PackedTree, report: _Report) -> None:
    if not ctx.settings.store:  # it is on this machine's disk
        missing = ctx.store.missing(chunk_hashes(packed.manifest))
        check_room(ctx.layout.store_dir, sum(packed.where[name][2] for name in missing))
    store_packed(
        ctx,
        access.workspace_id,
        packed,
        lambda: datasets.commit(ctx, access, dataset_id, packed.manifest),
        progress=report.tick,
    )


class _Report:
    """Progress of an import: counts bytes, stores the count every two seconds, and raises if the import was cancelled."""

    def __init__(self, ctx: Context, dataset_id: str):
        self._ctx, self._dataset_id = ctx, dataset_id
        self._lock = threading.Lock()
        self._done, self._total, self._stored_at = 0, 0, time.monotonic()
        self._found: dict[str, str] | None = None

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._update()

    def tick(self, _: int) -> None:
        """Check for a stop and keep the record up to date, without counting bytes."""
        with self._lock:
            self._update()

    def expect(self, total: int) -> None:
        with self._lock:
            self._done, self._total = 0, total

    def finish(self, found: dict[str, str]) -> None:
        """Store the final origin of the dataset, after everything has arrived."""
        with self._lock:
            self._found = found
            self._store(found)

    def _update(self) -> None:
        if self._ctx.live.closing:
            raise Stopped
        if time.monotonic() - self._stored_at >= _REPORT_EVERY_S:
            total = {"total": str(self._total)} if self._total else {}
            self._store({"progress": str(self._done), **total} if self._found is None else self._found)
            self._stored_at = time.monotonic()

    def _store(self, found: dict[str, str]) -> None:
        def work(session: Session) -> bool:
            row = session.get(Dataset, self._dataset_id)
            if row is None or row.status != DatasetStatus.IMPORTING:
                return False
            row.origin = {k: v for k, v in row.origin.items() if k not in _OWN_KEYS} | found
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
    """Return the access of the person who started the import, with no more rights than needed."""
    row = session.get(Dataset, dataset_id)
    if row is None or row.status != DatasetStatus.IMPORTING:
        raise _Gone
    principal = Principal("", row.created_by, False, frozenset(), dataset_id, row.workspace_id)
    return Access(principal, row.workspace_id, session.get_one(Workspace, row.workspace_id).name, Role.MEMBER)


def _root(ctx: Context) -> Path:
    return ctx.layout.server_dir / "imports"


def _save_request(ctx: Context, workspace_id: str, dataset_id: str, request: DatasetImport) -> None:
    """Store the request, encrypted, because the query of a URL may contain a signature."""
    body = json.dumps({"url": request.url, "credentials": request.credentials})
    folder = _root(ctx) / dataset_id
    with disk_errors(folder):
        folder.mkdir(parents=True, mode=0o700)
        fd = os.open(folder / "request", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(ctx.vault.seal(body, bound_to=_bond(workspace_id, dataset_id)))
            file.flush()
            flush(file.fileno())
        for made in (folder, _root(ctx)):
            _sync_folder(made)


def _load_request(ctx: Context, workspace_id: str, dataset_id: str) -> DatasetImport:
    try:
        sealed = (_root(ctx) / dataset_id / "request").read_bytes()
        body = json.loads(ctx.vault.open(sealed, bound_to=_bond(workspace_id, dataset_id)))
        return DatasetImport(name="x", url=body["url"], credentials=body["credentials"])
    except (OSError, ValueError, KeyError, Corrupt):
        raise Refused("The server stopped before the import began; start the import again.") from None


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            flush(fd)
    finally:
        os.close(fd)


def _bond(workspace_id: str, dataset_id: str) -> str:
    return f"{workspace_id}/import/{dataset_id}"
