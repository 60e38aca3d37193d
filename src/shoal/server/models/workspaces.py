"""Workspaces, their members, and invitations to them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Workspace(Base):
    __tablename__ = "workspaces"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    created_at: Mapped[datetime]
    slot_quota: Mapped[int | None]
    """Slots its jobs may hold at one time; None for no limit."""
    model_quotas: Mapped[dict[str, int]] = mapped_column(JSON, default=dict, server_default="{}")
    """Model of GPU → slots of it that its jobs may hold at one time."""
    share: Mapped[float] = mapped_column(default=1.0, server_default="1")
    """Weight in the queue when workspaces want more slots than there are."""


class Member(Base):
    __tablename__ = "members"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str]


class WorkspaceInvitation(Base):
    """Link with which one person becomes a member. Used and revoked ones are kept as a record of who invited whom."""

    __tablename__ = "workspace_invitations"
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    email: Mapped[str]
    """Only an account with this address can use it; empty for anyone."""
    role: Mapped[str]
    code_hash: Mapped[bytes] = mapped_column(unique=True)
    created_by: Mapped[str]
    """E-mail address of the owner who made it."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_by: Mapped[str | None]
    """E-mail address of the person who used it."""
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
