"""Sources (code) and the chunks they are made of. A workspace sees only chunks it has uploaded itself."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest, MissingReply, SourceCommit, SourceView
from shoal.core.errors import NotFound, SourceTooLarge
from shoal.core.ids import new_id
from shoal.core.people import GitFetch
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.artifacts import Source, WorkspaceChunk
from shoal.server.policy import Access
from shoal.server.services import git
from shoal.store.manifest import manifest_id
from shoal.store.pack import pack_tree
from shoal.store.transfer import upload
from shoal.store.wire import decode_frames

_IN_BATCH = 500


def missing(ctx: Context, access: Access, hashes: list[str]) -> MissingReply:
    """What must be sent: not in the store, or not known to be this workspace's."""
    with ctx.db.read() as session:
        known = _known(session, access, hashes)
    absent = ctx.store.missing(known)
    return MissingReply(missing=[h for h in dict.fromkeys(hashes) if h not in known or h in absent])


def put_chunks(ctx: Context, access: Access, body: bytes) -> int:
    """Store frames of chunks, each verified against its hash; durable on return."""
    chunks = list(decode_frames(body))
    ctx.store.put_many(chunks)
    _own(ctx, access, [h for h, _ in chunks])
    return len(chunks)


def get_chunk(ctx: Context, access: Access, hash_: str) -> bytes:
    with ctx.db.read() as session:
        if hash_ not in _known(session, access, [hash_]):
            raise NotFound()
    return ctx.store.get(hash_)


def commit(ctx: Context, access: Access, request: SourceCommit) -> SourceView:
    """Make a source visible, if all its chunks are here; else say which are not."""
    manifest = request.manifest
    limit = ctx.settings.max_source_mb << 20
    if manifest.size > limit:
        raise SourceTooLarge(f"The source has {manifest.size >> 20} MiB; the limit for code is {limit >> 20} MiB.")
    need = list({c.hash for f in manifest.files for c in f.chunks})
    lacking = missing(ctx, access, need).missing
    if lacking:
        return SourceView(id="", manifest_id="", size=manifest.size, files=len(manifest.files), missing=lacking)
    return _record(ctx, access, manifest, request.origin)


def from_git(ctx: Context, access: Access, request: GitFetch) -> SourceView:
    with git.fetch(ctx, access, request) as (tree, origin):
        packed = pack_tree(tree, max_bytes=ctx.settings.max_source_mb << 20)
        upload(packed, ctx.store)
        _own(ctx, access, [c.hash for f in packed.manifest.files for c in f.chunks])
        return _record(ctx, access, packed.manifest, origin)


def _record(ctx: Context, access: Access, manifest: Manifest, origin: dict[str, str]) -> SourceView:
    ctx.store.put_manifest(manifest)
    id_, source_id = manifest_id(manifest), new_id("src")

    def work(session: Session) -> SourceView:
        session.add(
            Source(
                id=source_id,
                workspace_id=access.workspace_id,
                manifest_id=id_,
                size=manifest.size,
                files=len(manifest.files),
                origin=origin,
                created_at=utcnow(),
            )
        )
        return SourceView(id=source_id, manifest_id=id_, size=manifest.size, files=len(manifest.files))

    return ctx.db.write(work)


def _known(session: Session, access: Access, hashes: Iterable[str]) -> set[str]:
    wanted = [bytes.fromhex(h) for h in hashes]
    found: set[str] = set()
    for start in range(0, len(wanted), _IN_BATCH):
        rows = session.scalars(
            select(WorkspaceChunk.hash).where(
                WorkspaceChunk.workspace_id == access.workspace_id,
                WorkspaceChunk.hash.in_(wanted[start : start + _IN_BATCH]),
            )
        )
        found.update(h.hex() for h in rows)
    return found


def _own(ctx: Context, access: Access, hashes: list[str]) -> None:
    if not hashes:
        return
    rows = [{"workspace_id": access.workspace_id, "hash": bytes.fromhex(h)} for h in dict.fromkeys(hashes)]
    ctx.db.write(lambda session: session.execute(insert(WorkspaceChunk).on_conflict_do_nothing(), rows))
