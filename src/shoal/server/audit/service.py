"""Reading of the audit log, for admins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, or_, select

from shoal.core.audit import AuditEntry
from shoal.server.context import Context
from shoal.server.models.audit import AuditRow

_BATCH = 1_000


def list_entries(
    ctx: Context,
    *,
    actor: str | None = None,
    action: str | None = None,
    workspace: str | None = None,
    since: datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditEntry]:
    """Return entries, newest first.

    action     a whole action (`job.stop`), or the kind of its object (`job`)
    workspace  name or id
    before     only entries with a smaller number, to page on
    """
    query = _filtered(actor, action, workspace, since).order_by(AuditRow.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditRow.seq < before)
    with ctx.db.read() as session:
        return [_view(row) for row in session.scalars(query)]


def export(
    ctx: Context,
    *,
    actor: str | None = None,
    action: str | None = None,
    workspace: str | None = None,
    since: datetime | None = None,
) -> Iterator[bytes]:
    """Yield entries as JSON lines, oldest first. Reads in parts, so that no read transaction stays open."""
    query, last = _filtered(actor, action, workspace, since).order_by(AuditRow.seq).limit(_BATCH), 0
    while True:
        with ctx.db.read() as session:
            rows = session.scalars(query.where(AuditRow.seq > last)).all()
        if not rows:
            return
        last = rows[-1].seq
        yield b"".join(_line(_view(row)) for row in rows)


def _line(entry: AuditEntry) -> bytes:
    return json.dumps(entry.model_dump(mode="json")).encode() + b"\n"


def _filtered(actor: str | None, action: str | None, workspace: str | None, since: datetime | None) -> Select[Any]:
    query = select(AuditRow)
    if actor:
        query = query.where(AuditRow.actor == actor.strip().lower())
    if action:
        kind = action.strip().lower()
        query = query.where(or_(AuditRow.action == kind, AuditRow.action.startswith(f"{kind}.", autoescape=True)))
    if workspace:
        query = query.where(or_(AuditRow.workspace_id == workspace, AuditRow.workspace == workspace))
    if since is not None:
        query = query.where(AuditRow.at_ms >= round(since.timestamp() * 1000))
    return query


def _view(row: AuditRow) -> AuditEntry:
    return AuditEntry.model_validate(
        {name: getattr(row, name) for name in AuditEntry.model_fields if name != "at"}
        | {"at": datetime.fromtimestamp(row.at_ms / 1000, UTC)}
    )
