"""Media of runs: committed like checkpoints, shown in browsers with a sandbox policy."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import NotFound
from shoal.core.ids import new_id
from shoal.core.metrics import MediaCommit, MediaCommitted, MediaView
from shoal.server import lookup
from shoal.server.artifacts.commit import find_missing, record
from shoal.server.artifacts.downloads import Download, plain_headers
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.models.media import Media
from shoal.server.policy import Access, AgentIdentity

SAFE = frozenset(
    "image/png image/jpeg image/gif image/webp image/bmp image/svg+xml text/plain text/csv application/json "
    "application/vnd.plotly.v1+json application/vnd.shoal.histogram+json application/vnd.shoal.texts+json".split()
)
"""MIME types that browsers may show; all others are only downloaded. Scripts in SVG files are blocked by the sandbox."""
_SANDBOX_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox"


def commit(ctx: Context, who: AgentIdentity, request: MediaCommit) -> MediaCommitted:
    """Commit a media file, or return the chunks that are missing.

    Idempotent: one row per line of a rank's spool file. Fenced attempts may commit too.
    """
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
    if missing := find_missing(ctx, workspace_id, request.manifest):
        return MediaCommitted(missing=missing)
    entry = request.manifest.files[0]

    def work(session: Session, manifest_id: str) -> MediaCommitted:
        known = lookup.of_line(session, Media, who, request.rank, request.n)
        if known is not None:
            return MediaCommitted(id=known.id, manifest_id=known.manifest_id)
        row = Media(
            id=new_id("med"),
            job_id=who.job_id,
            attempt=who.attempt,
            node=who.node,
            rank=request.rank,
            n=request.n,
            step=request.step,
            at=request.t,
            name=request.name,
            type=request.type,
            mime=request.mime,
            file=entry.path.rpartition("/")[2],
            size=entry.size,
            manifest_id=manifest_id,
        )
        session.add(row)
        session.get_one(Job, who.job_id).metrics_cursor += 1
        return MediaCommitted(id=row.id, manifest_id=manifest_id)

    made = record(ctx, request.manifest, work)
    ctx.live.job_changed(who.job_id)
    return made


def list_media(ctx: Context, access: Access, job: str) -> list[MediaView]:
    """Return a job's media, by step."""
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        found = session.scalars(select(Media).where(Media.job_id == row.id).order_by(Media.step, Media.id))
        return [_view(m) for m in found]


def content(ctx: Context, access: Access, job: str, media_id: str) -> Download:
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        found = session.scalar(select(Media).where(Media.job_id == row.id, Media.id == media_id))
        if found is None:
            raise NotFound(f"There is no media file '{media_id}' in job '{row.name}'.")
    entry = ctx.store.get_manifest(found.manifest_id).files[0]
    is_safe = found.mime in SAFE
    headers = plain_headers(found.file, inline=is_safe) | {
        "Content-Length": str(entry.size),
        "Content-Security-Policy": _SANDBOX_POLICY,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
    data = b"".join(ctx.store.get(chunk.hash) for chunk in entry.chunks)
    return Download(iter([data]), found.mime if is_safe else "application/octet-stream", headers)


def _view(row: Media) -> MediaView:
    return MediaView(
        id=row.id,
        name=row.name,
        type=row.type,
        step=row.step,
        at=row.at,
        attempt=row.attempt,
        mime=row.mime,
        size=row.size,
        file=row.file,
    )
