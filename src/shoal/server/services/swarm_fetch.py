"""What a peer fetches from the server: code and data by hash, and the swarm's newest state."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.core.errors import NotFound
from shoal.core.swarm_views import SwarmStateFile, SwarmStateView
from shoal.server.context import Context
from shoal.server.models.artifacts import Source
from shoal.server.models.swarm import Swarm
from shoal.server.services import agents, chunks, downloads, swarm_rows
from shoal.server.services.swarm_peers import Peer, manifests
from shoal.store.hashing import Data
from shoal.store.manifest import dump_manifest


def manifest(ctx: Context, who: Peer, manifest_id: str) -> bytes:
    """Of its code or data; others do not exist for this peer."""
    if manifest_id not in _readable(ctx, who):
        raise NotFound()
    return dump_manifest(ctx.store.get_manifest(manifest_id))


def frames(ctx: Context, who: Peer, names: list[str]) -> tuple[int | None, Iterator[list[Data]]]:
    """Chunks of its code and data."""
    if set(names) - agents.named_chunks(ctx, _readable(ctx, who)):
        raise NotFound()
    with ctx.db.read() as session:
        workspace_id = session.get_one(Swarm, who.swarm_id).workspace_id
    return chunks.frames(ctx, workspace_id, names)


def chunk(ctx: Context, who: Peer, name: str) -> bytes:
    if name not in agents.named_chunks(ctx, _readable(ctx, who)):
        raise NotFound()
    return ctx.store.get(name)


def snapshot(ctx: Context, who: Peer) -> SwarmStateView:
    """The newest checkpoint: where to start from when no peer can give its state."""
    with ctx.db.read() as session:
        found = swarm_rows.newest(session, who.swarm_id)
    if found is None:
        raise NotFound("This swarm has no checkpoint yet.")
    mine, row = found
    return SwarmStateView(
        id=row.id,
        round=mine.round,
        samples=mine.samples,
        loss=row.facts.get("train_loss"),
        hash=mine.hash,
        files=[SwarmStateFile(path=f.path, size=f.size) for f in ctx.store.get_manifest(row.manifest_id).files],
    )


def snapshot_file(ctx: Context, who: Peer, checkpoint: str, path: str, wanted: str | None) -> downloads.Download:
    """One file of a checkpoint of this swarm's."""
    with ctx.db.read() as session:
        found = next((row for _, row in swarm_rows.kept(session, who.swarm_id) if row.id == checkpoint), None)
    if found is None:
        raise NotFound("This swarm has no such checkpoint any more.")
    return downloads.file_of(ctx, found, path, wanted)


def _readable(ctx: Context, who: Peer) -> tuple[str, ...]:
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, who.swarm_id)
        return manifests(swarm, session.get_one(Source, swarm.source_id))
