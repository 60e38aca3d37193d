"""Notifications: rules, notices of people, and deliveries that are still to be sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class NoticeRule(Base):
    __tablename__ = "notice_rules"
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    """Person who made it; the only one it tells, unless it is shared."""
    shared: Mapped[bool]
    kind: Mapped[str]
    jobs: Mapped[str]
    metric: Mapped[str]
    value: Mapped[float | None]
    channels: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    created_by: Mapped[str]
    created_at: Mapped[datetime]


class NoticeRow(Base):
    """Notice of one person."""

    __tablename__ = "notices"
    __table_args__ = (
        UniqueConstraint("user_id", "key"),
        Index("ix_notices_unread", "user_id", sqlite_where=text("read_at IS NULL")),
        {"sqlite_autoincrement": True},
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    key: Mapped[str]
    """Identity of what happened; two rules that match the same make one notice."""
    kind: Mapped[str]
    title: Mapped[str]
    text: Mapped[str]
    path: Mapped[str]
    at: Mapped[datetime]
    read_at: Mapped[datetime | None]


class NoticeDelivery(Base):
    """Notice on its way through one channel of a rule; kept until it arrived or was given up."""

    __tablename__ = "notice_deliveries"
    __table_args__ = (
        UniqueConstraint("rule_id", "key", "type", "to"),
        Index("ix_notice_deliveries_due", "next_at", sqlite_where=text("state = 'waiting'")),
        {"sqlite_autoincrement": True},
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    rule_id: Mapped[str] = mapped_column(ForeignKey("notice_rules.id", ondelete="CASCADE"))
    key: Mapped[str]
    type: Mapped[str]
    to: Mapped[str]
    notice: Mapped[dict[str, Any]]
    state: Mapped[str]
    """waiting, sent or failed."""
    tries: Mapped[int]
    next_at: Mapped[datetime]
    error: Mapped[str | None]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]
