"""Users, sessions, keys, workspaces, members, secrets and git hosts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class User(Base):
    __tablename__ = "users"
    id: Mapped[str] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    password_hash: Mapped[str | None]
    """None: signs in by the owner file only."""
    is_admin: Mapped[bool]
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    """Since when an admin lets nobody sign in to it."""


class SessionRow(Base):
    __tablename__ = "sessions"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    secret_hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    program: Mapped[str | None]
    """What it was started with."""


class ApiKey(Base):
    __tablename__ = "api_keys"
    __table_args__ = (
        # A revoked key's name can be given again.
        Index("uq_api_keys_live_name", "user_id", "name", unique=True, sqlite_where=text("revoked_at IS NULL")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str]
    secret_hash: Mapped[bytes] = mapped_column(unique=True)
    hint: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Workspace(Base):
    __tablename__ = "workspaces"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    created_at: Mapped[datetime]
    slot_quota: Mapped[int | None]
    """Slots its jobs may hold at once; None for as many as there are."""
    share: Mapped[float] = mapped_column(default=1.0, server_default="1")
    """Its weight against other workspaces' when all want more than there is."""


class Member(Base):
    __tablename__ = "members"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str]


class WorkspaceInvitation(Base):
    """A link by which one person becomes a member. Used and revoked ones stay, as a record of who let in whom."""

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
    """E-mail address of who has joined by it."""
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Secret(Base):
    __tablename__ = "secrets"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[bytes]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Registry(Base):
    """A git host and the sealed token for it."""

    __tablename__ = "registries"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    username: Mapped[str]
    sealed: Mapped[bytes]
    created_at: Mapped[datetime]


class GitSource(Base):
    __tablename__ = "git_sources"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    revision: Mapped[str | None]
    created_at: Mapped[datetime]
