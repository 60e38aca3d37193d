"""Users, and what they sign in with: sessions and API keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class User(Base):
    __tablename__ = "users"
    id: Mapped[str] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    password_hash: Mapped[str | None]
    """Hash of the password; None for the owner, who signs in with the owner's key file only."""
    is_admin: Mapped[bool]
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    """Time when an admin disabled the account, or None."""


class SessionRow(Base):
    __tablename__ = "sessions"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    secret_hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    program: Mapped[str | None]
    """Program that started the session (its User-Agent)."""


class ApiKey(Base):
    __tablename__ = "api_keys"
    __table_args__ = (
        # The name of a revoked key can be used again.
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
