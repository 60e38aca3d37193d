"""Downloads of a peer from the server: code and data by hash, and the swarm's newest training state."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.core.errors import NotFound
from shoal.core.swarm_views import SwarmStateFile, SwarmStateView
from shoal.server.artifacts import chunks, downloads
from shoal.server.context import Context
from shoal.server.jobs import agents
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm
from shoal.server.swarms import swarm_rows
from shoal.server.swarms.peers import Peer, manifests
from shoal.store.hashing import Data
from shoal.store.manifest import dump_manifest


def manifest(ctx: Context, who: Peer, manifest_id: str) -> bytes:
    """Return a manifest of the swarm's code or data as JSON; any other manifest raises NotFound."""
    if manifest_id not in _readable(ctx, who):
        raise NotFound()
    return dump_manifest(ctx.store.get_manifest(manifest_id))


def frames(ctx: Context, who: Peer, names: list[str]) -> tuple[int | None, Iterator[list[Data]]]:
    """Return the total size, if known, and the frames of chunks of the swarm's code and data."""
    if set(names) - agents.named_chunks(ctx, _readable(ctx, who)):
        raise NotFound()
    with ctx.db.read() as session:
        workspace_id = session.get_one(Swarm, who.swarm_id).workspace_id
    return chunks.frames(ctx, workspace_id, names)


def chunk(ctx: Context, who: Peer, name: str) -> bytes:
    if name not in agents.named_chunks(ctx, _readable(ctx, who)):
        raise NotFound()
    return ctx.store.get(name)


def newest_state(ctx: Context, who: Peer) -> SwarmStateView:
    """Return the newest checkpoint, from which a peer starts if no other peer can send its state."""
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


def state_file(ctx: Context, who: Peer, checkpoint: str, path: str, wanted: str | None) -> downloads.Download:
    """Return one file of a checkpoint of this swarm."""
    with ctx.db.read() as session:
        found = next((row for _, row in swarm_rows.kept(session, who.swarm_id) if row.id == checkpoint), None)
    if found is None:
        raise NotFound("This swarm no longer has that checkpoint.")
    return downloads.file_of(ctx, found, path, wanted)


def _readable(ctx: Context, who: Peer) -> tuple[str, ...]:
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, who.swarm_id)
        return manifests(swarm, session.get_one(Source, swarm.source_id))
