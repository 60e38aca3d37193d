"""Machines of the pool, and the tokens by which machines may come by themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class PoolRow(Base):
    __tablename__ = "pool_machines"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    via: Mapped[str]
    """ssh or join."""
    asked: Mapped[dict[str, Any]]
    """The PoolAdd or JoinAsk it came by."""
    state: Mapped[str]
    """adding, failed, up or draining; whether it is lost is the engine's to say."""
    kind: Mapped[str]
    slots: Mapped[int]
    gpus: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True))
    address: Mapped[str | None]
    home: Mapped[str | None]
    python: Mapped[str | None]
    url: Mapped[str | None]
    """This server, as it sees it."""
    facts: Mapped[dict[str, Any]]
    steps: Mapped[list[Any]] = mapped_column(JSON)
    problems: Mapped[list[Any]] = mapped_column(JSON)
    created_at: Mapped[datetime]


class DrainedMachine(Base):
    """A machine outside `pool_machines` on which nothing new starts: the server's own."""

    __tablename__ = "drained_machines"
    name: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime]


class PoolJoin(Base):
    """A token of which only the hash is kept. It takes in one machine, whose steps it then opens until it expires."""

    __tablename__ = "pool_joins"
    id: Mapped[str] = mapped_column(primary_key=True)
    token_hash: Mapped[bytes] = mapped_column(unique=True)
    ask: Mapped[dict[str, Any]]
    address: Mapped[str]
    """Of this server, as the machine will see it."""
    expires_at: Mapped[datetime]
    machine_id: Mapped[str | None] = mapped_column(ForeignKey("pool_machines.id", ondelete="CASCADE"))
