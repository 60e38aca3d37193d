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
from shoal.server.artifacts.commit import find_missing, record, store_packed
from shoal.server.context import Context
from shoal.server.git import service as git
from shoal.server.models.sources import Source
from shoal.server.policy import Access
from shoal.store.files import disk_errors
from shoal.store.pack import PackedTree, pack_files, pack_tree


def commit(ctx: Context, access: Access, request: SourceCommit) -> SourceView:
    """Commit a source, or return the chunks that are missing."""
    manifest, limit = request.manifest, ctx.settings.max_source_mb << 20
    if manifest.size > limit:
        raise SourceTooLarge(f"The source has {manifest.size >> 20} MiB; the limit for code is {limit >> 20} MiB.")
    if missing := find_missing(ctx, access.workspace_id, manifest):
        return SourceView(id="", manifest_id="", size=manifest.size, files=len(manifest.files), missing=missing)
    return _record(ctx, access, manifest, request.origin)


def from_git(ctx: Context, access: Access, request: GitFetch) -> SourceView:
    with git.fetch(ctx, access, request) as (tree, origin):
        return from_tree(ctx, access, tree, origin)


def from_tree(ctx: Context, access: Access, tree: Path, origin: dict[str, str]) -> SourceView:
    """Store a folder of this machine as a source, without the files that its .gitignore and .shoalignore exclude."""
    packed = pack_tree(tree, max_bytes=ctx.settings.max_source_mb << 20)
    return _store(ctx, access, packed, packed.manifest, origin)


def from_texts(
    ctx: Context, access: Access, texts: Mapping[str, str], origin: dict[str, str], others: Sequence[FileEntry] = ()
) -> SourceView:
    """Store texts (path → text) as a source, together with `others` of an existing source.

    A text replaces a file of its path.
    """
    root = ctx.layout.server_dir / "uploads"
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix="texts-", dir=root) as folder:
            for number, text in enumerate(texts.values()):
                (Path(folder) / str(number)).write_text(text, "utf-8")
            packed = pack_files({path: Path(folder) / str(number) for number, path in enumerate(texts)})
            files = [file for file in others if file.path not in texts] + packed.manifest.files
            return _store(ctx, access, packed, Manifest(files=sorted(files, key=lambda file: file.path)), origin)


def _store(ctx: Context, access: Access, packed: PackedTree, manifest: Manifest, origin: dict[str, str]) -> SourceView:
    return store_packed(ctx, access.workspace_id, packed, lambda: _record(ctx, access, manifest, origin))


def _record(ctx: Context, access: Access, manifest: Manifest, origin: dict[str, str]) -> SourceView:
    source_id = new_id("src")

    def work(session: Session, manifest_id: str) -> SourceView:
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

    return record(ctx, manifest, work)
