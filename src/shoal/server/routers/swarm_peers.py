"""Routes for machines that join a swarm. They use an invitation until they have joined, then their own token."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Response
from fastapi.responses import StreamingResponse

from shoal.core.datasets import FetchRequest
from shoal.core.swarm_views import (
    Offer,
    PeerBeat,
    PeerInstructions,
    PeerJoin,
    PeerJoined,
    PeerKnock,
    PeerKnocked,
    SwarmStateView,
)
from shoal.server.bulk_upload import GroupsResponse
from shoal.server.context import Ctx
from shoal.server.request_origin import Address
from shoal.server.routers import api_router
from shoal.server.swarms import fetch as swarm_fetch
from shoal.server.swarms import peers as swarm_peers
from shoal.server.swarms.invitations import Guest, InvitedOnly
from shoal.server.swarms.peers import Peer, PeerOnly
from shoal.store.wire import CONTENT_TYPE

router = api_router("/swarm", tags=["swarm"])
Invited = Annotated[Guest, Depends(InvitedOnly())]
Member = Annotated[Peer, Depends(PeerOnly())]
OnceMember = Annotated[Peer, Depends(PeerOnly(gone_too=True))]
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.get("/offer")
def offer(ctx: Ctx, who: Invited) -> Offer:
    """Return what the invitation is for and what a peer needs: download sizes, versions, the server's time, and addresses
    it must be able to reach."""
    return swarm_peers.offer(ctx, who)


@router.post("/knock")
def knock(_: Invited, address: Address, request: PeerKnock) -> PeerKnocked:
    """Test whether other peers could connect to a port of the calling machine."""
    return swarm_peers.knock(address, request.port)


@router.post("/join")
def join(ctx: Ctx, who: Invited, request: PeerJoin) -> PeerJoined:
    """Join the swarm as a peer. The reply contains its token, the other members and what to run."""
    return swarm_peers.join(ctx, who, request)


@router.post("/beat")
def beat(ctx: Ctx, who: OnceMember, request: PeerBeat) -> PeerInstructions:
    """Send a heartbeat of a peer. The reply contains commands for it."""
    return swarm_peers.beat(ctx, who, request)


@router.post("/leave", status_code=204)
def leave(ctx: Ctx, who: OnceMember) -> None:
    """Leave the swarm. The machine can join again later."""
    swarm_peers.leave(ctx, who)


@router.get("/manifests/{manifest}")
def manifest(ctx: Ctx, who: Member, manifest: str) -> Response:
    """Return the manifest of the swarm's code or of one of its datasets."""
    return Response(swarm_fetch.manifest(ctx, who, manifest), media_type="application/json")


@router.post("/fetch")
def fetch_chunks(ctx: Ctx, who: Member, request: FetchRequest) -> GroupsResponse:
    """Return chunks of the swarm's code and data, framed as in `shoal.store.wire`."""
    size, frames = swarm_fetch.frames(ctx, who, request.hashes)
    headers = {"Content-Length": str(size)} if size is not None else None
    return GroupsResponse(frames, media_type=CONTENT_TYPE, headers=headers)


@router.get("/chunks/{hash}")
def chunk(ctx: Ctx, who: Member, hash: Hash) -> Response:
    """Return the uncompressed bytes of one chunk of the swarm's code or data."""
    return Response(swarm_fetch.chunk(ctx, who, hash), media_type="application/octet-stream")


@router.get("/snapshot")
def newest_state(ctx: Ctx, who: Member) -> SwarmStateView:
    """Return the newest training state of the swarm that the server has stored."""
    return swarm_fetch.newest_state(ctx, who)


@router.get("/snapshot/{checkpoint}/{path:path}")
def state_file(
    ctx: Ctx, who: Member, checkpoint: str, path: str, range: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Download one file of a stored training state. A Range header continues an interrupted download."""
    found = swarm_fetch.state_file(ctx, who, checkpoint, path, range)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)
