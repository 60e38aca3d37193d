"""Sources: code that jobs run, committed by manifest or fetched from git."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy.orm import Session

from shoal.core.artifacts import FileEntry, Manifest, SourceCommit, SourceView
from shoal.core.errors import SourceTooLarge
from shoal.core.ids import new_id
from shoal.core.people import GitFetch
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.artifacts import Source
from shoal.server.policy import Access
from shoal.server.services import chunks, git
from shoal.store.files import disk_errors
from shoal.store.manifest import chunk_hashes
from shoal.store.pack import pack_files, pack_tree
from shoal.store.transfer import upload


def commit(ctx: Context, access: Access, request: SourceCommit) -> SourceView:
    """Make a source visible, if all its chunks are here; else say which are not."""
    manifest, limit = request.manifest, ctx.settings.max_source_mb << 20
    if manifest.size > limit:
        raise SourceTooLarge(f"The source has {manifest.size >> 20} MiB; the limit for code is {limit >> 20} MiB.")
    lacking = chunks.missing(ctx, access.workspace_id, chunk_hashes(manifest))
    if lacking:
        return SourceView(id="", manifest_id="", size=manifest.size, files=len(manifest.files), missing=lacking)
    return _record(ctx, access, manifest, request.origin)


def from_git(ctx: Context, access: Access, request: GitFetch) -> SourceView:
    with git.fetch(ctx, access, request) as (tree, origin):
        return from_tree(ctx, access, tree, origin)


def from_tree(ctx: Context, access: Access, tree: Path, origin: dict[str, str]) -> SourceView:
    """Code that is on this machine's disk, without what its .gitignore and .shoalignore name."""
    packed = pack_tree(tree, max_bytes=ctx.settings.max_source_mb << 20)
    upload(packed, ctx.store)
    chunks.own(ctx, access.workspace_id, chunk_hashes(packed.manifest))
    return _record(ctx, access, packed.manifest, origin)


def from_texts(
    ctx: Context, access: Access, texts: Mapping[str, str], origin: dict[str, str], others: Sequence[FileEntry] = ()
) -> SourceView:
    """Files made here, path → text, among `others` of a source of this workspace; a text replaces a file of its path."""
    root = ctx.layout.server_dir / "uploads"
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix="texts-", dir=root) as folder:
            for number, text in enumerate(texts.values()):
                (Path(folder) / str(number)).write_text(text, "utf-8")
            packed = pack_files({path: Path(folder) / str(number) for number, path in enumerate(texts)})
            upload(packed, ctx.store)
    chunks.own(ctx, access.workspace_id, chunk_hashes(packed.manifest))
    files = [file for file in others if file.path not in texts] + packed.manifest.files
    return _record(ctx, access, Manifest(files=sorted(files, key=lambda file: file.path)), origin)


def _record(ctx: Context, access: Access, manifest: Manifest, origin: dict[str, str]) -> SourceView:
    source_id = new_id("src")

    def work(session: Session) -> SourceView:
        session.add(
            Source(
                id=source_id,
                workspace_id=access.workspace_id,
                manifest_id=manifest_id,
                size=manifest.size,
                files=len(manifest.files),
                origin=origin,
                created_at=utcnow(),
            )
        )
        return SourceView(id=source_id, manifest_id=manifest_id, size=manifest.size, files=len(manifest.files))

    with ctx.gate.open():
        manifest_id = ctx.store.put_manifest(manifest)
        return ctx.db.write(work)
