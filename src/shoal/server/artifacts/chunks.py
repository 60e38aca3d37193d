"""Chunks of a workspace: it may use only those it has uploaded itself, whatever else the store contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from shoal.core.errors import NotFound
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.chunks import WorkspaceChunk
from shoal.store.hashing import Data
from shoal.store.wire import HEAD_BYTES, frame_groups, view_frames

_GROUP_BYTES = 4 << 20
"""Bytes per group: a worker thread reads one group at a time."""


def missing(ctx: Context, workspace_id: str, hashes: Iterable[str]) -> list[str]:
    """Return the chunks that must be uploaded: not in the store, or not known to belong to this workspace."""
    wanted = list(dict.fromkeys(hashes))
    with ctx.db.read() as session:
        known = _known(session, workspace_id, wanted)
    absent = ctx.store.missing(known)
    return [h for h in wanted if h not in known or h in absent]


def receive(ctx: Context, workspace_id: str, body: Data) -> int:
    """Store chunks that a person uploads, and note that their pushes are under way."""
    ctx.uploads.note(workspace_id)
    return put(ctx, workspace_id, body)


def put(ctx: Context, workspace_id: str, body: Data) -> int:
    """Store frames of chunks, each verified against its hash; durable on return."""
    names: list[str] = []

    def frames() -> Iterator[tuple[str, int, Data]]:
        for name, codec, payload in view_frames([body]):
            names.append(name)
            yield name, codec, payload

    ctx.store.put_stored(frames())
    own(ctx, workspace_id, names)
    return len(names)


def get(ctx: Context, workspace_id: str, name: str) -> bytes:
    return next(data for _, data in get_many(ctx, workspace_id, [name]))


def frames(ctx: Context, workspace_id: str, names: list[str]) -> tuple[int | None, Iterator[list[Data]]]:
    """Return the length of a response with many chunks, or None, and its body in groups of pieces.

    Chunks are sent as they are stored, because clients verify them. Access is checked before the first byte is sent, so that a
    refusal is a plain 404.
    """
    wanted = list(dict.fromkeys(names))
    _check_known(ctx, workspace_id, wanted)
    size, stored = ctx.store.stored(wanted)
    return None if size is None else size + HEAD_BYTES * len(wanted), frame_groups(stored, _GROUP_BYTES)


def get_many(ctx: Context, workspace_id: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
    _check_known(ctx, workspace_id, names)
    return ((name, ctx.store.get(name)) for name in names)


def own(ctx: Context, workspace_id: str, hashes: Iterable[str]) -> None:
    """Record that the workspace has uploaded these chunks."""
    rows = [{"workspace_id": workspace_id, "hash": bytes.fromhex(h)} for h in dict.fromkeys(hashes)]
    if rows:
        ctx.db.write(lambda session: session.execute(insert(WorkspaceChunk).on_conflict_do_nothing(), rows))


def _check_known(ctx: Context, workspace_id: str, names: list[str]) -> None:
    with ctx.db.read() as session:
        unknown = set(names) - _known(session, workspace_id, names)
    if unknown:
        raise NotFound(f"There is no chunk '{min(unknown)}' here.")


def _known(session: Session, workspace_id: str, hashes: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for wanted in in_parts(bytes.fromhex(h) for h in hashes):
        rows = session.scalars(
            select(WorkspaceChunk.hash).where(
                WorkspaceChunk.workspace_id == workspace_id, WorkspaceChunk.hash.in_(wanted)
            )
        )
        found.update(h.hex() for h in rows)
    return found
