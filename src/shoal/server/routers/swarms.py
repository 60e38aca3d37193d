"""Swarms: one model, trained by peers that come and go."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.checkpoints import CheckpointView
from shoal.core.schema import MOST_INT
from shoal.core.swarm import SwarmSpec
from shoal.core.swarm_views import (
    InvitationCreate,
    InvitationCreated,
    InvitationView,
    Kick,
    PeerView,
    RoundView,
    SwarmCreated,
    SwarmSummary,
    SwarmView,
)
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import swarm_invitations, swarm_kick, swarms

router = api_router("/workspaces/{workspace}/swarms", tags=["swarms"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Rounds = Annotated[int, Query(ge=1, le=10_000)]


@router.post("", status_code=201)
def create(ctx: Ctx, access: Worker, spec: SwarmSpec) -> SwarmCreated:
    """Make a swarm, with a first invitation. The server's own peer in it starts at once."""
    return swarms.create(ctx, access, spec)


@router.get("")
def list_swarms(ctx: Ctx, access: Viewer, limit: Limit = 100) -> list[SwarmSummary]:
    """Swarms of the workspace, newest first."""
    return swarms.summaries(ctx, access, limit=limit)


@router.get("/{swarm}")
def inspect(ctx: Ctx, access: Viewer, swarm: str) -> SwarmView:
    """One swarm: how far it is, its keeper, what has happened."""
    return swarms.get(ctx, access, swarm)


@router.get("/{swarm}/peers")
def peers(ctx: Ctx, access: Viewer, swarm: str) -> list[PeerView]:
    """All who have joined, in the order they came, and what each contributed."""
    return swarms.peers(ctx, access, swarm)


@router.get("/{swarm}/rounds")
def rounds(
    ctx: Ctx, access: Viewer, swarm: str, after: Annotated[int, Query(ge=-1, le=MOST_INT)] = -1, limit: Rounds = 1000
) -> list[RoundView]:
    """How each round went; `after` is the number of the last one of the page before."""
    return swarms.rounds(ctx, access, swarm, after=after, limit=limit)


@router.get("/{swarm}/checkpoints")
def list_checkpoints(ctx: Ctx, access: Viewer, swarm: str) -> list[CheckpointView]:
    """What was kept of it, oldest first; each is a checkpoint of the workspace."""
    return swarms.list_checkpoints(ctx, access, swarm)


@router.post("/{swarm}/stop")
def stop(ctx: Ctx, access: Worker, swarm: str) -> SwarmView:
    """Keep a last checkpoint, tell all peers to leave, and end the server's own."""
    return swarms.stop(ctx, access, swarm)


@router.post("/{swarm}/resume")
def resume(ctx: Ctx, access: Worker, swarm: str, force: bool = False) -> SwarmView:
    """Go on from the newest checkpoint, with whoever joins from now on. Refused while peers are there, unless by `force`."""
    return swarms.resume(ctx, access, swarm, force=force)


@router.delete("/{swarm}", status_code=204)
def delete(ctx: Ctx, access: Worker, swarm: str) -> None:
    """Remove a swarm that was stopped. Its checkpoints stay."""
    swarms.delete(ctx, access, swarm)


@router.post("/{swarm}/peers/{peer}/kick")
def kick(ctx: Ctx, access: Worker, swarm: str, peer: str, request: Kick) -> PeerView:
    """Send a peer away for good, by id or name."""
    return swarm_kick.kick(ctx, access, swarm, peer, request)


@router.get("/{swarm}/invitations")
def list_invitations(ctx: Ctx, access: Viewer, swarm: str) -> list[InvitationView]:
    """Newest first; their tokens are not shown again."""
    return swarm_invitations.list_invitations(ctx, access, swarm)


@router.post("/{swarm}/invitations", status_code=201)
def invite(ctx: Ctx, access: Worker, swarm: str, request: InvitationCreate) -> InvitationCreated:
    """Make an invitation. The link is http(s)://SERVER/join/TOKEN."""
    return swarm_invitations.create(ctx, access, swarm, request)


@router.delete("/{swarm}/invitations/{invitation}", status_code=204)
def revoke(ctx: Ctx, access: Worker, swarm: str, invitation: str) -> None:
    """Revoke an invitation, by id or name. Peers that have joined by it stay."""
    swarm_invitations.revoke(ctx, access, swarm, invitation)
