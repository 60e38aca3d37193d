"""Functions shared by the swarm services: events, members and checkpoints of a swarm, its folder and its key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from shoal.core.errors import NotAllowedNow
from shoal.core.schema import utcnow
from shoal.core.swarm_views import PeerState, SwarmState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.swarm import Swarm, SwarmCheckpoint, SwarmEventRow, SwarmPeer

SILENCE_S = 30.0
"""Seconds without a heartbeat after which a peer counts as lost."""
GONE = (PeerState.LEFT.value, PeerState.KICKED.value)


def record_event(session: Session, swarm_id: str, kind: str, message: str, **data: Any) -> None:
    """Append an event to a swarm's history."""
    last = session.scalar(select(func.max(SwarmEventRow.seq)).where(SwarmEventRow.swarm_id == swarm_id))
    session.add(
        SwarmEventRow(swarm_id=swarm_id, seq=(last or 0) + 1, at=utcnow(), kind=kind, message=message, data=data)
    )
    session.flush()


def refuse_running(session: Session, workspace_id: str, workspace: str) -> None:
    running = select(Swarm.name).where(Swarm.workspace_id == workspace_id, Swarm.state == SwarmState.RUNNING.value)
    if name := session.scalar(running.limit(1)):
        raise NotAllowedNow(
            f"Workspace '{workspace}' still has a running swarm: {name}.", hint=f"shoal swarm stop {name}"
        )


def folder(ctx: Context, swarm_id: str) -> Path:
    return ctx.layout.root / "swarms" / swarm_id


def run_id(swarm: Swarm) -> str:
    return f"{swarm.id}-{swarm.generation}"  # hivemind does not allow a dot in it


def seal_key(ctx: Context, swarm_id: str, key: str) -> bytes:
    return ctx.vault.seal(key, bound_to=f"swarm {swarm_id}")


def signing_key(ctx: Context, swarm: Swarm) -> str:
    return ctx.vault.open(swarm.sealed_key, bound_to=f"swarm {swarm.id}")


def members(session: Session, swarm_id: str) -> dict[str, str]:
    """Return peer id → public key of all peers that may take part."""
    rows = session.execute(
        select(SwarmPeer.id, SwarmPeer.public_key)
        .where(SwarmPeer.swarm_id == swarm_id, SwarmPeer.state.not_in(GONE))
        .order_by(SwarmPeer.id)
    )
    return {row.id: row.public_key for row in rows}


def banned(session: Session, swarm_id: str) -> list[str]:
    mine = SwarmPeer.swarm_id == swarm_id, SwarmPeer.state == PeerState.KICKED.value
    return list(session.scalars(select(SwarmPeer.id).where(*mine).order_by(SwarmPeer.id)))


def state_of(peer: SwarmPeer, now: datetime) -> PeerState:
    """Return the peer's state for display: LOST if it has been silent for too long."""
    silent = peer.state not in GONE and now - peer.seen_at > timedelta(seconds=SILENCE_S)
    return PeerState.LOST if silent else PeerState(peer.state)


def present(session: Session, swarm_id: str) -> int:
    """Return the number of peers that sent a heartbeat within `SILENCE_S`."""
    return present_in(session, [swarm_id])[swarm_id]


def present_in(session: Session, swarm_ids: Sequence[str]) -> dict[str, int]:
    """Return swarm id → number of present peers, as in `present`."""
    lately, found = utcnow() - timedelta(seconds=SILENCE_S), dict.fromkeys(swarm_ids, 0)
    for some in in_parts(swarm_ids):
        there = SwarmPeer.swarm_id.in_(some), SwarmPeer.state.not_in(GONE), SwarmPeer.seen_at >= lately
        counted = select(SwarmPeer.swarm_id, func.count()).where(*there).group_by(SwarmPeer.swarm_id)
        found.update((swarm_id, count) for swarm_id, count in session.execute(counted))
    return found


def kept(session: Session, swarm_id: str) -> list[tuple[SwarmCheckpoint, Checkpoint]]:
    """Return the checkpoints of a swarm, newest first."""
    return [(row[0], row[1]) for row in session.execute(_kept(swarm_id))]


def newest(session: Session, swarm_id: str) -> tuple[SwarmCheckpoint, Checkpoint] | None:
    """Return the newest checkpoint of a swarm that is not damaged, or None."""
    row = session.execute(_kept(swarm_id).where(Checkpoint.damaged.is_(False)).limit(1)).one_or_none()
    return (row[0], row[1]) if row else None


def _kept(swarm_id: str) -> Select[SwarmCheckpoint, Checkpoint]:
    return (
        select(SwarmCheckpoint, Checkpoint)
        .join(Checkpoint, Checkpoint.id == SwarmCheckpoint.checkpoint_id)
        .where(SwarmCheckpoint.swarm_id == swarm_id)
        .order_by(Checkpoint.id.desc())
    )
