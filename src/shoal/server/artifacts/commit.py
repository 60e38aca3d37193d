"""Commits of artifacts on the server: by a client's manifest, or from files of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest
from shoal.core.errors import NotFound
from shoal.server.artifacts import chunks
from shoal.server.context import Context
from shoal.store.commit import commit_until_complete
from shoal.store.manifest import chunk_hashes
from shoal.store.pack import PackedTree, Progress
from shoal.store.transfer import upload

Row = TypeVar("Row")
_OWN_AT_ONCE = 10_000


class Committed(Protocol):
    """Answer to a commit: the chunks that are missing, or the artifact."""

    missing: list[str]


C = TypeVar("C", bound=Committed)


def find_missing(ctx: Context, workspace_id: str, manifest: Manifest) -> list[str]:
    """Return the chunks of a manifest that the workspace has to upload before it can be committed."""
    return chunks.missing(ctx, workspace_id, chunk_hashes(manifest))


def record(ctx: Context, manifest: Manifest, work: Callable[[Session, str], Row]) -> Row:
    """Store a manifest and write the row that refers to it; `work` gets the manifest's id.

    The shared lock is held over both steps, so that no garbage collection removes the manifest in between (see `gc_lock`).
    Raises NotFound with the detail `missing` if a chunk has been removed since it was asked for.
    """
    with ctx.gc_lock.open():
        manifest_id = ctx.store.put_manifest(manifest)
        return ctx.db.write(lambda session: work(session, manifest_id))


def store_packed(
    ctx: Context, workspace_id: str, packed: PackedTree, commit: Callable[[], C], progress: Progress | None = None
) -> C:
    """Put files of this machine into the store and commit them; again if a garbage collection removed chunks meanwhile."""
    hashes = list(chunk_hashes(packed.manifest))

    def send(_: list[str]) -> None:
        upload(packed, ctx.store, progress=progress)
        for at in range(0, len(hashes), _OWN_AT_ONCE):
            chunks.own(ctx, workspace_id, hashes[at : at + _OWN_AT_ONCE])

    def attempt() -> C | NotFound:
        try:
            return commit()
        except NotFound as error:
            if "missing" not in error.details:
                raise
            return error

    send(hashes)
    done = commit_until_complete(attempt, send, _missing)
    if isinstance(done, NotFound):  # it names no chunk; `_missing` has seen at least one
        raise done
    return done


def _missing(answer: Committed | NotFound) -> list[str]:
    return list(answer.details["missing"]) if isinstance(answer, NotFound) else answer.missing
