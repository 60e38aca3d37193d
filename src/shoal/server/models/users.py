"""Users, and what they sign in with: sessions, API keys, accounts at sign-in services, and codes sent by mail."""

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
    email_verified_at: Mapped[datetime | None]
    """Time when the person last proved that the address is theirs: by a link in a mail, or by a sign-in service."""


class Identity(Base):
    """An account at a sign-in service that belongs to a user. The issuer's subject identifies it: addresses can change hands."""

    __tablename__ = "identities"
    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    email: Mapped[str]
    """Address that the service named when the accounts were connected."""
    created_at: Mapped[datetime]


class MailCode(Base):
    """A code sent by mail, which proves that its reader owns the address. It works once."""

    __tablename__ = "mail_codes"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    purpose: Mapped[str]
    """`reset` or `verify`."""
    email: Mapped[str]
    code_hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


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
