"""What machines that join a swarm call: with an invitation until they are in, then with a token of their own."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Response
from fastapi.responses import StreamingResponse

from shoal.core.datasets import FetchRequest
from shoal.core.swarm_views import (
    Offer,
    PeerBeat,
    PeerJoin,
    PeerJoined,
    PeerKnock,
    PeerKnocked,
    PeerOrders,
    SwarmStateView,
)
from shoal.server.callers import Address
from shoal.server.context import Ctx
from shoal.server.lane import GroupsResponse
from shoal.server.routers import api_router
from shoal.server.services import swarm_fetch, swarm_peers
from shoal.server.services.swarm_invitations import Guest, InvitedOnly
from shoal.server.services.swarm_peers import Peer, PeerOnly
from shoal.store.wire import CONTENT_TYPE

router = api_router("/swarm", tags=["swarm"])
Invited = Annotated[Guest, Depends(InvitedOnly())]
Member = Annotated[Peer, Depends(PeerOnly())]
OnceMember = Annotated[Peer, Depends(PeerOnly(gone_too=True))]
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.get("/offer")
def offer(ctx: Ctx, who: Invited) -> Offer:
    """What the invitation opens, and what it takes: sizes, versions, the server's clock, addresses to reach."""
    return swarm_peers.offer(ctx, who)


@router.post("/knock")
def knock(_: Invited, address: Address, request: PeerKnock) -> PeerKnocked:
    """Whether others could connect to a port of the machine that asks."""
    return swarm_peers.knock(address, request.port)


@router.post("/join")
def join(ctx: Ctx, who: Invited, request: PeerJoin) -> PeerJoined:
    """Become a peer: a token, the members, what to run."""
    return swarm_peers.join(ctx, who, request)


@router.post("/beat")
def beat(ctx: Ctx, who: OnceMember, request: PeerBeat) -> PeerOrders:
    """Still here; the reply says what to do next."""
    return swarm_peers.beat(ctx, who, request)


@router.post("/leave", status_code=204)
def leave(ctx: Ctx, who: OnceMember) -> None:
    """Gone, until it joins again."""
    swarm_peers.leave(ctx, who)


@router.get("/manifests/{manifest}")
def manifest(ctx: Ctx, who: Member, manifest: str) -> Response:
    """The manifest of the swarm's code, or of one of its datasets."""
    return Response(swarm_fetch.manifest(ctx, who, manifest), media_type="application/json")


@router.post("/fetch")
def fetch_chunks(ctx: Ctx, who: Member, request: FetchRequest) -> GroupsResponse:
    """Chunks of the swarm's code and data, framed as in `shoal.store.wire`."""
    size, frames = swarm_fetch.frames(ctx, who, request.hashes)
    headers = {"Content-Length": str(size)} if size is not None else None
    return GroupsResponse(frames, media_type=CONTENT_TYPE, headers=headers)


@router.get("/chunks/{hash}")
def chunk(ctx: Ctx, who: Member, hash: Hash) -> Response:
    """Plain bytes of one of these chunks."""
    return Response(swarm_fetch.chunk(ctx, who, hash), media_type="application/octet-stream")


@router.get("/snapshot")
def snapshot(ctx: Ctx, who: Member) -> SwarmStateView:
    """The newest state that the server has of the swarm."""
    return swarm_fetch.snapshot(ctx, who)


@router.get("/snapshot/{checkpoint}/{path:path}")
def snapshot_file(
    ctx: Ctx, who: Member, checkpoint: str, path: str, range: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """One file of it. A Range header continues a download."""
    found = swarm_fetch.snapshot_file(ctx, who, checkpoint, path, range)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)
