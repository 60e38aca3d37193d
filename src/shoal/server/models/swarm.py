"""Swarms: their settings, invitations, peers, rounds, checkpoints and events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Swarm(Base):
    __tablename__ = "swarms"
    __table_args__ = (UniqueConstraint("workspace_id", "name"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    source_id: Mapped[str] = mapped_column(ForeignKey("sources.id"))
    inputs: Mapped[list[dict[str, str]]]
    """Mounts of every peer at /input, fixed when the swarm was created."""
    created_by: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str | None]
    generation: Mapped[int] = mapped_column(default=1)
    """Starts at 1, and each resume adds one; peers of different generations do not meet."""
    owner_key: Mapped[str]
    sealed_key: Mapped[bytes]
    """Private half of `owner_key`, encrypted with the server's key."""
    fingerprint: Mapped[str | None]
    port: Mapped[int]
    progress: Mapped[dict[str, Any] | None]
    """Last report of the swarm coordinator about all peers together."""
    addresses: Mapped[list[str]]
    """Addresses of the swarm coordinator, while it is ready."""
    coordinator_starts: Mapped[int] = mapped_column("keeper_starts", default=0)
    coordinator_read: Mapped[int] = mapped_column("keeper_read", default=0)
    """Bytes of the current coordinator's report file that are stored in these tables."""
    created_at: Mapped[datetime]
    stopped_at: Mapped[datetime | None]


class SwarmInvitation(Base):
    __tablename__ = "swarm_invitations"
    id: Mapped[str] = mapped_column(primary_key=True)
    swarm_id: Mapped[str] = mapped_column(ForeignKey("swarms.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    max_peers: Mapped[int | None]


class SwarmPeer(Base):
    __tablename__ = "swarm_peers"
    __table_args__ = (UniqueConstraint("swarm_id", "public_key"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    swarm_id: Mapped[str] = mapped_column(ForeignKey("swarms.id", ondelete="CASCADE"))
    invitation_id: Mapped[str] = mapped_column(ForeignKey("swarm_invitations.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    public_key: Mapped[str]
    token_hash: Mapped[bytes] = mapped_column(unique=True)
    token_expires_at: Mapped[datetime]
    state: Mapped[str]
    reason: Mapped[str | None]
    client_mode: Mapped[bool]
    facts: Mapped[dict[str, Any]]
    stats: Mapped[dict[str, Any]]
    """Last report of the swarm coordinator about this peer."""
    joined_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    left_at: Mapped[datetime | None]


class SwarmRound(Base):
    __tablename__ = "swarm_rounds"
    swarm_id: Mapped[str] = mapped_column(ForeignKey("swarms.id", ondelete="CASCADE"), primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    loss: Mapped[float | None]
    samples: Mapped[int | None]
    alive: Mapped[int | None]
    performance: Mapped[float | None]
    seconds: Mapped[float | None]
    averaged: Mapped[float | None]
    bytes: Mapped[int | None]
    members: Mapped[list[str]]


class SwarmCheckpoint(Base):
    """Link between a swarm and one of its workspace's checkpoints."""

    __tablename__ = "swarm_checkpoints"
    __table_args__ = (Index("ix_swarm_checkpoints_swarm", "swarm_id", "checkpoint_id"),)
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.id", ondelete="CASCADE"), primary_key=True)
    swarm_id: Mapped[str] = mapped_column(ForeignKey("swarms.id", ondelete="CASCADE"))
    round: Mapped[int]
    hash: Mapped[str]
    samples: Mapped[int | None]


class SwarmEventRow(Base):
    __tablename__ = "swarm_events"
    swarm_id: Mapped[str] = mapped_column(ForeignKey("swarms.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    kind: Mapped[str]
    message: Mapped[str]
    data: Mapped[dict[str, Any]]
