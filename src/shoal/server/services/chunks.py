"""Chunks as a workspace sees them: it may use only those it has brought itself, whatever else the store holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from shoal.core.errors import NotFound
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.artifacts import WorkspaceChunk
from shoal.store.hashing import Data
from shoal.store.wire import HEAD_BYTES, frame_groups, view_frames

_GROUP_BYTES = 4 << 20
"""Sent before a thread is asked for more."""


def missing(ctx: Context, workspace_id: str, hashes: Iterable[str]) -> list[str]:
    """What must be sent: not in the store, or not known to be this workspace's."""
    wanted = list(dict.fromkeys(hashes))
    with ctx.db.read() as session:
        known = _known(session, workspace_id, wanted)
    absent = ctx.store.missing(known)
    return [h for h in wanted if h not in known or h in absent]


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
    """Many chunks in one answer, with its length where that is known: as they are stored, for whoever asks verifies them.
    They come in groups of pieces.

    Checked before the first byte goes out, so that a refusal is a plain 404.
    """
    wanted = list(dict.fromkeys(names))
    _check_known(ctx, workspace_id, wanted)
    size, stored = ctx.store.stored(wanted)
    return None if size is None else size + HEAD_BYTES * len(wanted), frame_groups(stored, _GROUP_BYTES)


def get_many(ctx: Context, workspace_id: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
    _check_known(ctx, workspace_id, names)
    return ((name, ctx.store.get(name)) for name in names)


def own(ctx: Context, workspace_id: str, hashes: Iterable[str]) -> None:
    """Remember that the workspace has brought these."""
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
