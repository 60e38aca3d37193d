"""Datasets: a version is announced, its chunks are uploaded, its manifest commits it. Jobs see it only after the commit."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest
from shoal.core.audit import AuditAction
from shoal.core.datasets import DatasetBegin, DatasetCommitted, DatasetStatus, DatasetView, FileView, split_version
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server import lookup
from shoal.server.artifacts.commit import find_missing, record
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Job
from shoal.server.policy import Access
from shoal.store.manifest import dump_manifest

INTERRUPTED = "The upload was interrupted: nothing was received for a long time. Run `shoal dataset push` again; only missing chunks are sent."
"""Error of a push that has expired. Its client may still complete it."""
_UPLOAD_LIFE = timedelta(hours=24)
"""Age from which a push can expire. Chunks without a manifest are garbage after the same time."""


def begin(
    ctx: Context, access: Access, request: DatasetBegin, status: DatasetStatus = DatasetStatus.UPLOADING
) -> DatasetView:
    def work(session: Session) -> DatasetView:
        mine = (Dataset.workspace_id == access.workspace_id, Dataset.name == request.name)
        last = session.scalar(select(func.max(Dataset.version)).where(*mine))
        # Delete this person's earlier pushes that never finished; their version numbers are not reused.
        session.execute(
            sql_delete(Dataset).where(*mine, _is_unfinished(), Dataset.created_by == access.principal.email)
        )
        dataset = Dataset(
            id=new_id("ds"),
            workspace_id=access.workspace_id,
            name=request.name,
            version=(last or 0) + 1,
            status=status.value,
            origin=request.origin,
            created_by=access.principal.email,
            created_at=utcnow(),
        )
        session.add(dataset)
        session.flush()
        return view(dataset)

    return ctx.db.write(work)


def commit(ctx: Context, access: Access, dataset_id: str, manifest: Manifest) -> DatasetCommitted:
    """Make an announced version available, or return the chunks that are missing. One that has expired is completed too."""
    with ctx.db.read() as session:
        _pending(session, access, dataset_id)
    if missing := find_missing(ctx, access.workspace_id, manifest):
        return DatasetCommitted(missing=missing)

    def work(session: Session, manifest_id: str) -> DatasetCommitted:
        dataset = _pending(session, access, dataset_id)
        newest = lookup.newest_dataset(session, access, dataset.name)
        if newest is not None and newest.manifest_id == manifest_id:
            session.delete(dataset)
            return DatasetCommitted(dataset=view(newest), unchanged=True)
        dataset.status, dataset.manifest_id, dataset.error = DatasetStatus.AVAILABLE.value, manifest_id, None
        dataset.size, dataset.files, dataset.available_at = manifest.size, len(manifest.files), utcnow()
        return DatasetCommitted(dataset=view(dataset))

    return record(ctx, manifest, work)


def fail(ctx: Context, access: Access, dataset_id: str, error: str) -> None:
    def work(session: Session) -> None:
        dataset = _pending(session, access, dataset_id)
        dataset.status, dataset.error = DatasetStatus.ERROR.value, error

    ctx.db.write(work, essential=True)


def expire_uploads(ctx: Context) -> None:
    """Mark pushes as failed that were begun a day ago and send nothing any more: their clients were interrupted."""
    old = select(Dataset.id, Dataset.workspace_id).where(
        Dataset.status == DatasetStatus.UPLOADING.value, Dataset.created_at < utcnow() - _UPLOAD_LIFE
    )
    with ctx.db.read() as session:
        expired = [
            dataset_id for dataset_id, workspace_id in session.execute(old) if ctx.uploads.is_quiet(workspace_id)
        ]
    if expired:
        ended = update(Dataset).where(Dataset.id.in_(expired), Dataset.status == DatasetStatus.UPLOADING.value)
        ended = ended.values(status=DatasetStatus.ERROR.value, error=INTERRUPTED)
        ctx.db.write(lambda session: session.execute(ended) and None, essential=True)


def list_datasets(ctx: Context, access: Access) -> list[DatasetView]:
    """Return every version of every dataset, newest first."""
    query = select(Dataset).where(Dataset.workspace_id == access.workspace_id).order_by(Dataset.id.desc())
    with ctx.db.read() as session:
        return [view(row) for row in session.scalars(query)]


def get(ctx: Context, access: Access, reference: str) -> DatasetView:
    with ctx.db.read() as session:
        return view(lookup.dataset(session, access, reference, available=False))


def manifest(ctx: Context, access: Access, reference: str) -> bytes:
    """Return the canonical JSON of a version's manifest."""
    return dump_manifest(_manifest(ctx, access, reference))


def files(ctx: Context, access: Access, reference: str, *, after: str, limit: int) -> list[FileView]:
    found = _manifest(ctx, access, reference)
    return [FileView(path=f.path, size=f.size) for f in found.files if f.path > after][:limit]


def delete(ctx: Context, access: Access, reference: str) -> int:
    """Delete a version, or with a bare name all versions; return how many. Refused while an unfinished job uses the dataset."""

    def work(session: Session) -> int:
        found = lookup.dataset(session, access, reference, available=False)
        name, version = found.name, None if reference == found.name else found.version
        users = [
            job.name
            for job in session.scalars(
                select(Job).where(
                    Job.workspace_id == access.workspace_id,
                    Job.state.not_in([s.value for s in JobState if s.is_terminal]),
                )
            )
            if any(split_version(d)[0] == name for d in job.spec["datasets"])
        ]
        if users:
            raise NotAllowedNow(
                f"Dataset '{name}' is in use by job '{users[0]}'.", hint=f"shoal training stop {users[0]}"
            )
        query = sql_delete(Dataset).where(Dataset.workspace_id == access.workspace_id, Dataset.name == name)
        if version is not None:
            query = query.where(Dataset.version == version)
        count: int = session.execute(query).rowcount  # type: ignore[attr-defined]
        what, all_of = (name, f"{count} versions") if version is None else (f"{name}@{version}", "")
        object_id = found.id if count == 1 else ""
        record_action(session, AuditAction.DATASET_DELETE, what, object_id, workspace=access, detail=all_of)
        return count

    return ctx.db.write(work, essential=True)


def view(row: Dataset) -> DatasetView:
    return DatasetView(
        id=row.id,
        name=row.name,
        version=row.version,
        status=DatasetStatus(row.status),
        size=row.size or 0,
        files=row.files or 0,
        manifest_id=row.manifest_id,
        origin=row.origin,
        error=row.error,
        created_by=row.created_by,
        created_at=row.created_at,
        available_at=row.available_at,
    )


def _pending(session: Session, access: Access, dataset_id: str) -> Dataset:
    dataset = session.scalar(
        select(Dataset).where(Dataset.workspace_id == access.workspace_id, Dataset.id == dataset_id)
    )
    if dataset is None:
        raise NotFound(f"There is no dataset upload '{dataset_id}'; it may have been replaced by a newer one.")
    is_pending = dataset.status in (DatasetStatus.UPLOADING, DatasetStatus.IMPORTING)
    if not is_pending and (dataset.status, dataset.error) != (DatasetStatus.ERROR, INTERRUPTED):
        raise NotAllowedNow(f"Dataset '{dataset.name}@{dataset.version}' is {dataset.status} and cannot be changed.")
    return dataset


def _is_unfinished() -> ColumnElement[bool]:
    """Return the condition of pushes that never finished, expired or not."""
    expired = and_(Dataset.status == DatasetStatus.ERROR.value, Dataset.error == INTERRUPTED)
    return or_(Dataset.status == DatasetStatus.UPLOADING.value, expired)


def _manifest(ctx: Context, access: Access, reference: str) -> Manifest:
    with ctx.db.read() as session:
        manifest_id = lookup.dataset(session, access, reference).manifest_id
    return ctx.store.get_manifest(manifest_id or "")
