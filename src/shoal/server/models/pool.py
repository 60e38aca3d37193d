"""Machines of the pool, and the tokens with which machines join by themselves."""

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
    """Way in which it was added: `ssh` or `join`."""
    asked: Mapped[dict[str, Any]]
    """PoolAdd or JoinCommandRequest with which it was added."""
    state: Mapped[str]
    """State `adding`, `failed`, `up` or `draining`; the engine knows whether it is lost."""
    kind: Mapped[str]
    slots: Mapped[int]
    gpus: Mapped[list[int | str] | None] = mapped_column(JSON(none_as_null=True))
    """Accelerators that the pool may use; None: all. In rows of earlier versions: the number of each slot's accelerator."""
    devices: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Accelerator of each slot, as the machine last told; None in rows of earlier versions."""
    address: Mapped[str | None]
    home: Mapped[str | None]
    python: Mapped[str | None]
    url: Mapped[str | None]
    """URL of this server for the machine."""
    facts: Mapped[dict[str, Any]]
    steps: Mapped[list[Any]] = mapped_column(JSON)
    problems: Mapped[list[Any]] = mapped_column(JSON)
    created_at: Mapped[datetime]


class DrainedMachine(Base):
    """Drained machine that is not in `pool_machines`: the server's own."""

    __tablename__ = "drained_machines"
    name: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime]


class DrainedDevice(Base):
    """Accelerator that takes no new jobs, by its UUID (or PCI address), and the reason."""

    __tablename__ = "drained_devices"
    machine: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime]
    reason: Mapped[str]


class DeviceRecord(Base):
    """State of an accelerator from `since` until `until`; the current record has no end."""

    __tablename__ = "device_records"
    id: Mapped[int] = mapped_column(primary_key=True)
    machine: Mapped[str] = mapped_column(index=True)
    device: Mapped[str]
    """Its UUID, or its PCI address."""
    since: Mapped[datetime]
    until: Mapped[datetime | None]
    facts: Mapped[dict[str, Any]]
    """The fields of `shoal.agent.devices.device.Device`."""


class PoolJoin(Base):
    """Join token, stored as a hash. It admits one machine, which may use it for all steps of joining until it expires."""

    __tablename__ = "pool_joins"
    id: Mapped[str] = mapped_column(primary_key=True)
    token_hash: Mapped[bytes] = mapped_column(unique=True)
    ask: Mapped[dict[str, Any]]
    address: Mapped[str]
    """Address of this server that the machine will use."""
    expires_at: Mapped[datetime]
    machine_id: Mapped[str | None] = mapped_column(ForeignKey("pool_machines.id", ondelete="CASCADE"))
