"""Sign-in sessions of a person: list them, and end them from another session."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import NotFound
from shoal.core.people import OpenSession
from shoal.core.schema import utcnow
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.users import SessionRow
from shoal.server.policy import Principal

_LASTING = timedelta(hours=1)
"""Shortest life of a session that is listed; shorter ones are one-time links for opening a browser."""


def list_sessions(ctx: Context, principal: Principal) -> list[OpenSession]:
    """Return a person's open sessions, newest first."""
    live = select(SessionRow).where(SessionRow.user_id == principal.user_id, SessionRow.expires_at > utcnow())
    with ctx.db.read() as session:
        rows = session.scalars(live.order_by(SessionRow.id.desc())).all()
    return [
        OpenSession(
            id=row.id,
            program=row.program or "",
            created_at=row.created_at,
            expires_at=row.expires_at,
            current=row.id == principal.key_id,
        )
        for row in rows
        if row.expires_at - row.created_at > _LASTING
    ]


def end_session(ctx: Context, principal: Principal, session_id: str) -> None:
    def work(session: Session) -> None:
        mine = delete(SessionRow).where(SessionRow.user_id == principal.user_id, SessionRow.id == session_id)
        if session.scalar(mine.returning(SessionRow.id)) is None:
            raise NotFound("That session has already ended.")
        record_action(session, AuditAction.SESSION_END, principal.email, session_id)

    ctx.db.write(work, essential=True)


def end_others(ctx: Context, principal: Principal) -> int:
    """End all of a person's sessions except the current one; return how many ended."""
    others = delete(SessionRow).where(SessionRow.user_id == principal.user_id, SessionRow.id != principal.key_id)

    def work(session: Session) -> int:
        ended = session.scalars(others.returning(SessionRow.id)).all()
        for session_id in ended:
            record_action(session, AuditAction.SESSION_END, principal.email, session_id)
        return len(ended)

    return ctx.db.write(work, essential=True)
