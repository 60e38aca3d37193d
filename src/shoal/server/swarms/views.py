"""Conversion of the database rows of a swarm to the views of the API."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.schema import utcnow
from shoal.core.swarm import SwarmSpec
from shoal.core.swarm_views import (
    CoordinatorView,
    InvitationView,
    PeerView,
    RoundView,
    SwarmEvent,
    SwarmState,
    SwarmSummary,
    SwarmView,
)
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm, SwarmEventRow, SwarmInvitation, SwarmPeer, SwarmRound
from shoal.server.swarms import swarm_rows
from shoal.server.swarms.coordinators import CoordinatorStatus
from shoal.server.swarms.trust import contribution

_EVENTS = 200
_STATS = ("round", "samples", "samples_per_s", "loss", "mini_steps", "bytes_in", "bytes_out")


def summary(swarm: Swarm, peers: int) -> SwarmSummary:
    """Return the summary of a swarm; `peers` is the number of present peers."""
    return SwarmSummary(**_summary(swarm, peers))


def view(session: Session, swarm: Swarm, workspace: str, coordinator: CoordinatorStatus) -> SwarmView:
    source = session.get_one(Source, swarm.source_id)
    kept = swarm_rows.kept(session, swarm.id)
    return SwarmView(
        **_summary(swarm, swarm_rows.present(session, swarm.id)),
        workspace=workspace,
        created_by=swarm.created_by,
        spec=SwarmSpec.model_validate(swarm.spec),
        source={**source.origin, "id": source.id, "size": source.size, "files": source.files},
        run_id=swarm_rows.run_id(swarm),
        owner_key=swarm.owner_key,
        keeper=CoordinatorView(
            state=coordinator.state,
            pid=coordinator.pid,
            restarts=coordinator.restarts,
            problem=coordinator.problem,
            addresses=swarm.addresses,
        ),
        checkpoint=next((row.name for _, row in kept if not row.damaged), None),
        checkpoints=len(kept),
        invitations=sum(i.is_open for i in invitations(session, swarm.id)),
        reported=[peer for peer in peers(session, swarm.id) if peer.evidence],
        events=_events(session, swarm.id),
    )


def peers(session: Session, swarm_id: str) -> list[PeerView]:
    """Return all peers of a swarm in the order in which they joined."""
    rows = list(session.scalars(select(SwarmPeer).where(SwarmPeer.swarm_id == swarm_id).order_by(SwarmPeer.id)))
    total, now = sum(contribution(row.stats) for row in rows), utcnow()
    return [
        PeerView(
            id=row.id,
            name=row.name,
            state=swarm_rows.state_of(row, now),
            reason=row.reason,
            invitation=row.invitation_id,
            joined_at=row.joined_at,
            seen_at=row.seen_at,
            left_at=row.left_at,
            accepted=contribution(row.stats),
            share=contribution(row.stats) / total if total else 0.0,
            evidence=row.stats.get("evidence", []),
            client_mode=row.client_mode,
            facts=row.facts,
            **{key: row.stats[key] for key in _STATS if row.stats.get(key) is not None},
        )
        for row in rows
    ]


def rounds(session: Session, swarm_id: str, *, after: int, limit: int) -> list[RoundView]:
    """Return the rounds after number `after`, by number."""
    mine = select(SwarmRound).where(SwarmRound.swarm_id == swarm_id, SwarmRound.round > after)
    return [
        RoundView(
            round=row.round,
            at=row.at,
            loss=row.loss,
            samples=row.samples,
            alive=row.alive,
            performance=row.performance,
            seconds=row.seconds,
            averaged=row.averaged,
            bytes=row.bytes,
            members=row.members,
        )
        for row in session.scalars(mine.order_by(SwarmRound.round).limit(limit))
    ]


def invitations(session: Session, swarm_id: str) -> list[InvitationView]:
    """Return the invitations to a swarm, newest first."""
    joined = (
        select(SwarmPeer.invitation_id, func.count().label("n"))
        .where(SwarmPeer.swarm_id == swarm_id)
        .group_by(SwarmPeer.invitation_id)
    )
    counts = {row.invitation_id: int(row.n) for row in session.execute(joined)}
    rows = session.scalars(
        select(SwarmInvitation).where(SwarmInvitation.swarm_id == swarm_id).order_by(SwarmInvitation.id.desc())
    )
    return [invitation(row, counts.get(row.id, 0)) for row in rows]


def invitation(row: SwarmInvitation, joined: int) -> InvitationView:
    full = row.max_peers is not None and joined >= row.max_peers
    return InvitationView(
        id=row.id,
        name=row.name,
        created_by=row.created_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        max_peers=row.max_peers,
        peers=joined,
        is_open=row.revoked_at is None and row.expires_at > utcnow() and not full,
    )


def _summary(swarm: Swarm, peers: int) -> dict[str, Any]:
    progress = swarm.progress or {}
    return {
        "id": swarm.id,
        "name": swarm.name,
        "status": SwarmState(swarm.state),
        "reason": swarm.reason,
        "public": swarm.spec["public"],
        "peers": peers,
        **{key: progress.get(key) for key in ("round", "samples", "total_samples", "loss", "performance")},
        "created_at": swarm.created_at,
        "stopped_at": swarm.stopped_at,
    }


def _events(session: Session, swarm_id: str) -> list[SwarmEvent]:
    """Return the last events of a swarm, oldest first."""
    rows = session.scalars(
        select(SwarmEventRow)
        .where(SwarmEventRow.swarm_id == swarm_id)
        .order_by(SwarmEventRow.seq.desc())
        .limit(_EVENTS)
    ).all()
    return [SwarmEvent(seq=e.seq, at=e.at, kind=e.kind, message=e.message, data=e.data) for e in reversed(rows)]
