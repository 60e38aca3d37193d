"""Where a person is signed in, and ending it from elsewhere."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from shoal.core.errors import NotFound
from shoal.core.people import OpenSession
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.people import SessionRow
from shoal.server.policy import Principal

_LASTING = timedelta(hours=1)
"""Shorter ones are links on their way into a browser."""


def list_sessions(ctx: Context, principal: Principal) -> list[OpenSession]:
    """Newest first."""
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
            raise NotFound("That session has ended already.")

    ctx.db.write(work, essential=True)


def end_others(ctx: Context, principal: Principal) -> int:
    """All but the one that asks; returns how many."""
    others = delete(SessionRow).where(SessionRow.user_id == principal.user_id, SessionRow.id != principal.key_id)
    return ctx.db.write(lambda session: len(session.scalars(others.returning(SessionRow.id)).all()), essential=True)
