"""Peers of a swarm on the server: joining, heartbeats, commands for peers, and leaving."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal import __version__
from shoal.core.errors import Forbidden, NameTaken, NotAllowedNow, NotSignedIn, Refused
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.core.swarm import SET_CLOCK, SwarmSpec, clock_problem, version_problem
from shoal.core.swarm_views import (
    Offer,
    PeerBeat,
    PeerInput,
    PeerInstructions,
    PeerJoin,
    PeerJoined,
    PeerKnocked,
    PeerState,
    SwarmState,
)
from shoal.server.context import Context, Ctx
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm, SwarmPeer
from shoal.server.people.keys import new_token
from shoal.server.policy import Policy, hash_token
from shoal.server.pool.runtime import installed
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import swarm_rows
from shoal.server.swarms.invitations import Guest

TOKEN_PREFIX = "shoalq_"
TOKEN_LIFE = timedelta(hours=1)
_KNOCK_S = 3.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Caller that is identified by a peer's token."""

    id: str
    swarm_id: str


class PeerOnly(Policy):
    def __init__(self, *, gone_too: bool = False):
        self._gone_too = gone_too

    def __call__(self, request: Request, ctx: Ctx) -> Peer:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        with ctx.db.read() as session:
            row = session.scalar(select(SwarmPeer).where(SwarmPeer.token_hash == hash_token(token.strip())))
        if scheme.lower() != "bearer" or row is None or row.token_expires_at <= utcnow():
            raise NotSignedIn("This peer is unknown here, or was away for too long.", hint="shoal swarm join LINK")
        if row.state == PeerState.KICKED and not self._gone_too:
            raise Forbidden(_kicked(row))
        return Peer(row.id, row.swarm_id)


def offer(ctx: Context, who: Guest) -> Offer:
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, who.swarm_id)
        source = session.get_one(Source, swarm.source_id)
        newest = swarm_rows.newest(session, swarm.id)
    sizes = [ctx.store.get_manifest(manifest).size for manifest in manifests(swarm, source)]
    return Offer(
        swarm=swarm.name,
        status=SwarmState(swarm.state),
        time=time.time(),
        version=__version__,
        hivemind=installed("hivemind"),
        code=source.manifest_id,
        size=sum(sizes),
        state_size=newest[1].size if newest else 0,
        addresses=swarm.addresses,
        keeper=ctx.coordinators.status(swarm.id).state,
        terms=SwarmSpec.model_validate(swarm.spec).terms(),
    )


def knock(address: str, port: int) -> PeerKnocked:
    """Test whether a port of the calling machine accepts connections."""
    try:
        socket.create_connection((address, port), timeout=_KNOCK_S).close()
    except OSError:
        return PeerKnocked(reached=False, address=address)
    return PeerKnocked(reached=True, address=address)


def join(ctx: Context, who: Guest, request: PeerJoin) -> PeerJoined:
    if wrong := clock_problem(request.time - time.time()):
        raise Refused(wrong, hint=SET_CLOCK)
    token, now = new_token(TOKEN_PREFIX), utcnow()

    def work(session: Session) -> tuple[Swarm, Source, str]:
        invitation = swarm_invitations.refuse_full(session, who.invitation_id)
        swarm = session.get_one(Swarm, who.swarm_id)
        source = session.get_one(Source, swarm.source_id)
        _check_joinable(swarm, source, request)
        peer = SwarmPeer(
            id=new_id("peer"),
            swarm_id=swarm.id,
            invitation_id=invitation.id,
            name=request.name,
            public_key=request.public_key,
            token_hash=hash_token(token),
            token_expires_at=now + TOKEN_LIFE,
            state=PeerState.JOINING.value,
            client_mode=request.client_mode,
            facts=request.facts,
            stats={},
            joined_at=now,
            seen_at=now,
        )
        session.add(peer)
        try:
            session.flush()
        except IntegrityError:
            raise NameTaken("This key has joined before; each peer needs its own key.") from None
        text = f"peer '{peer.name}' ({peer.id}) joined with invitation '{invitation.name}'"
        swarm_rows.record_event(session, swarm.id, "joined", text, peer=peer.id)
        return swarm, source, peer.id

    swarm, source, peer_id = ctx.db.write(work)
    changed(ctx, swarm.id)
    spec = SwarmSpec.model_validate(swarm.spec)
    return PeerJoined(
        peer=peer_id,
        token=token,
        terms=spec.terms(),
        entry=spec.entry,
        env=spec.env,
        code=source.manifest_id,
        inputs=[PeerInput(name=i["name"], manifest_id=i["manifest_id"]) for i in swarm.inputs],
        owner_key=swarm.owner_key,
        orders=instructions(ctx, Peer(peer_id, swarm.id)),
    )


def beat(ctx: Context, who: Peer, request: PeerBeat) -> PeerInstructions:
    def work(session: Session) -> None:
        row = session.get_one(SwarmPeer, who.id)
        if row.state == PeerState.KICKED:
            return
        row.state, row.left_at = request.state, None
        row.seen_at = utcnow()
        row.token_expires_at = row.seen_at + TOKEN_LIFE

    ctx.db.write(work)
    return instructions(ctx, who)


def leave(ctx: Context, who: Peer) -> None:
    def work(session: Session) -> None:
        row = session.get_one(SwarmPeer, who.id)
        if row.state not in swarm_rows.GONE:
            row.state, row.left_at = PeerState.LEFT.value, utcnow()
            swarm_rows.record_event(session, row.swarm_id, "left", f"peer '{row.name}' ({row.id}) left", peer=row.id)

    ctx.db.write(work)
    changed(ctx, who.swarm_id)


def instructions(ctx: Context, who: Peer) -> PeerInstructions:
    with ctx.db.read() as session:
        row, swarm = session.get_one(SwarmPeer, who.id), session.get_one(Swarm, who.swarm_id)
        is_kicked = row.state == PeerState.KICKED
        return PeerInstructions(
            status=SwarmState(swarm.state),
            run_id=swarm_rows.run_id(swarm),
            kicked=is_kicked,
            reason=_kicked(row) if is_kicked else swarm.reason,
            addresses=swarm.addresses,
            members=swarm_rows.members(session, swarm.id),
            fingerprint=swarm.fingerprint,
            has_snapshot=swarm_rows.newest(session, swarm.id) is not None,
        )


def manifests(swarm: Swarm, source: Source) -> tuple[str, ...]:
    """Return the ids of the manifests of the swarm's code and data."""
    return (source.manifest_id, *(i["manifest_id"] for i in swarm.inputs))


def changed(ctx: Context, swarm_id: str) -> None:
    """Wake the coordinators' thread and everyone who follows the swarm after a change of it."""
    ctx.coordinators.wake.set()
    ctx.live.job_changed(swarm_id)


def _check_joinable(swarm: Swarm, source: Source, request: PeerJoin) -> None:
    if swarm.state != SwarmState.RUNNING:
        raise NotAllowedNow(
            f"Swarm '{swarm.name}' is stopped; its owner can resume it.", hint=f"shoal swarm resume {swarm.name}"
        )
    if wrong := version_problem(swarm.name, request.version, __version__):
        raise Refused(wrong, hint=f"pip install 'shoal-train[swarm]=={__version__}'")
    if request.code != source.manifest_id:
        raise Refused(
            f"The code on this machine ({request.code[:12]}) differs from that of swarm '{swarm.name}' "
            f"({source.manifest_id[:12]}).",
            hint="Join with the current link: shoal swarm join LINK",
        )


def _kicked(row: SwarmPeer) -> str:
    return f"This peer was removed from the swarm: {row.reason}"
