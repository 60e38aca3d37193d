"""Datasets: a version is announced, its chunks arrive, its manifest commits it. Nothing is visible to jobs before."""

from __future__ import annotations

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest
from shoal.core.datasets import DatasetBegin, DatasetCommitted, DatasetStatus, DatasetView, FileView, split_version
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.models.artifacts import Dataset
from shoal.server.models.jobs import Job
from shoal.server.policy import Access
from shoal.server.services import chunks, find
from shoal.store.manifest import chunk_hashes, dump_manifest


def begin(
    ctx: Context, access: Access, request: DatasetBegin, status: DatasetStatus = DatasetStatus.UPLOADING
) -> DatasetView:
    def work(session: Session) -> DatasetView:
        mine = (Dataset.workspace_id == access.workspace_id, Dataset.name == request.name)
        last = session.scalar(select(func.max(Dataset.version)).where(*mine))
        # An earlier push of ours that never finished made its number free again.
        session.execute(
            sql_delete(Dataset).where(
                *mine, Dataset.status == "uploading", Dataset.created_by == access.principal.email
            )
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
    """Make the announced version available, if all its chunks are here; else say which are not."""
    with ctx.db.read() as session:
        _pending(session, access, dataset_id)
    lacking = chunks.missing(ctx, access.workspace_id, chunk_hashes(manifest))
    if lacking:
        return DatasetCommitted(missing=lacking)

    def work(session: Session) -> DatasetCommitted:
        dataset = _pending(session, access, dataset_id)
        newest = find.newest_dataset(session, access, dataset.name)
        if newest is not None and newest.manifest_id == manifest_id:
            session.delete(dataset)
            return DatasetCommitted(dataset=view(newest), unchanged=True)
        dataset.status, dataset.manifest_id = DatasetStatus.AVAILABLE.value, manifest_id
        dataset.size, dataset.files, dataset.available_at = manifest.size, len(manifest.files), utcnow()
        return DatasetCommitted(dataset=view(dataset))

    with ctx.gate.open():
        manifest_id = ctx.store.put_manifest(manifest)
        return ctx.db.write(work)


def fail(ctx: Context, access: Access, dataset_id: str, error: str) -> None:
    def work(session: Session) -> None:
        dataset = _pending(session, access, dataset_id)
        dataset.status, dataset.error = DatasetStatus.ERROR.value, error

    ctx.db.write(work, essential=True)


def list_datasets(ctx: Context, access: Access) -> list[DatasetView]:
    """Every version, newest first."""
    query = select(Dataset).where(Dataset.workspace_id == access.workspace_id).order_by(Dataset.id.desc())
    with ctx.db.read() as session:
        return [view(row) for row in session.scalars(query)]


def get(ctx: Context, access: Access, reference: str) -> DatasetView:
    with ctx.db.read() as session:
        return view(find.dataset(session, access, reference, available=False))


def manifest(ctx: Context, access: Access, reference: str) -> bytes:
    """The canonical JSON of a version's manifest."""
    return dump_manifest(_manifest(ctx, access, reference))


def files(ctx: Context, access: Access, reference: str, *, after: str, limit: int) -> list[FileView]:
    found = _manifest(ctx, access, reference)
    return [FileView(path=f.path, size=f.size) for f in found.files if f.path > after][:limit]


def delete(ctx: Context, access: Access, reference: str) -> int:
    """A version, or with a bare name all of them; refused while an unfinished job uses it. Returns how many went."""

    def work(session: Session) -> int:
        found = find.dataset(session, access, reference, available=False)
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
        return session.execute(query).rowcount  # type: ignore[attr-defined, no-any-return]

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
    if dataset.status not in (DatasetStatus.UPLOADING, DatasetStatus.IMPORTING):
        raise NotAllowedNow(f"Dataset '{dataset.name}@{dataset.version}' is {dataset.status} and cannot be changed.")
    return dataset


def _manifest(ctx: Context, access: Access, reference: str) -> Manifest:
    with ctx.db.read() as session:
        manifest_id = find.dataset(session, access, reference).manifest_id
    return ctx.store.get_manifest(manifest_id or "")
