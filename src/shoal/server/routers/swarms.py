"""Swarms: one model that is trained by peers which can join and leave at any time."""

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
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import kick as swarm_kick
from shoal.server.swarms import service as swarms

router = api_router("/workspaces/{workspace}/swarms", tags=["swarms"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Rounds = Annotated[int, Query(ge=1, le=10_000)]


@router.post("", status_code=201)
def create(ctx: Ctx, access: Worker, spec: SwarmSpec) -> SwarmCreated:
    """Create a swarm with a first invitation. The server starts the swarm's coordinator immediately."""
    return swarms.create(ctx, access, spec)


@router.get("")
def list_swarms(ctx: Ctx, access: Viewer, limit: Limit = 100) -> list[SwarmSummary]:
    """List the swarms of the workspace, newest first."""
    return swarms.summaries(ctx, access, limit=limit)


@router.get("/{swarm}")
def inspect(ctx: Ctx, access: Viewer, swarm: str) -> SwarmView:
    """Return one swarm: its progress, its coordinator and its events."""
    return swarms.get(ctx, access, swarm)


@router.get("/{swarm}/peers")
def peers(ctx: Ctx, access: Viewer, swarm: str) -> list[PeerView]:
    """List all peers that have joined, in the order of joining, with the contribution of each."""
    return swarms.peers(ctx, access, swarm)


@router.get("/{swarm}/rounds")
def rounds(
    ctx: Ctx, access: Viewer, swarm: str, after: Annotated[int, Query(ge=-1, le=MOST_INT)] = -1, limit: Rounds = 1000
) -> list[RoundView]:
    """List the rounds with their results; `after` is the number of the last round of the previous page."""
    return swarms.rounds(ctx, access, swarm, after=after, limit=limit)


@router.get("/{swarm}/checkpoints")
def list_checkpoints(ctx: Ctx, access: Viewer, swarm: str) -> list[CheckpointView]:
    """List the checkpoints of a swarm, oldest first. Each is a checkpoint of the workspace."""
    return swarms.list_checkpoints(ctx, access, swarm)


@router.post("/{swarm}/stop")
def stop(ctx: Ctx, access: Worker, swarm: str) -> SwarmView:
    """Stop a swarm: save a last checkpoint, tell all peers to leave, and end the coordinator."""
    return swarms.stop(ctx, access, swarm)


@router.post("/{swarm}/resume")
def resume(ctx: Ctx, access: Worker, swarm: str, force: bool = False) -> SwarmView:
    """Resume a swarm from its newest checkpoint; peers have to join again. Refused while peers are connected, unless
    `force` is set."""
    return swarms.resume(ctx, access, swarm, force=force)


@router.delete("/{swarm}", status_code=204)
def delete(ctx: Ctx, access: Worker, swarm: str) -> None:
    """Delete a stopped swarm. Its checkpoints stay."""
    swarms.delete(ctx, access, swarm)


@router.post("/{swarm}/peers/{peer}/kick")
def kick(ctx: Ctx, access: Worker, swarm: str, peer: str, request: Kick) -> PeerView:
    """Remove a peer from the swarm permanently, by id or name."""
    return swarm_kick.kick(ctx, access, swarm, peer, request)


@router.get("/{swarm}/invitations")
def list_invitations(ctx: Ctx, access: Viewer, swarm: str) -> list[InvitationView]:
    """List the invitations to a swarm, newest first, without their tokens."""
    return swarm_invitations.list_invitations(ctx, access, swarm)


@router.post("/{swarm}/invitations", status_code=201)
def invite(ctx: Ctx, access: Worker, swarm: str, request: InvitationCreate) -> InvitationCreated:
    """Create an invitation. The link is http(s)://SERVER/join/TOKEN."""
    return swarm_invitations.create(ctx, access, swarm, request)


@router.delete("/{swarm}/invitations/{invitation}", status_code=204)
def revoke(ctx: Ctx, access: Worker, swarm: str, invitation: str) -> None:
    """Revoke an invitation, by id or name. Peers that have already joined with it stay."""
    swarm_invitations.revoke(ctx, access, swarm, invitation)
