"""Layouts of the charts of a page: one per person and workspace, and one that the workspace shares."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from shoal.core.charts import ChartPage, Layouts
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.charts import ChartLayout
from shoal.server.policy import Access

_SHARED = ""


def get(ctx: Context, access: Access, page: ChartPage) -> Layouts:
    with ctx.db.read() as session:
        mine = session.get(ChartLayout, (access.workspace_id, page, access.principal.user_id))
        shared = session.get(ChartLayout, (access.workspace_id, page, _SHARED))
        return Layouts(
            mine=mine.layout if mine else None,
            shared=shared.layout if shared else None,
            shared_by=shared.saved_by if shared else None,
            shared_at=shared.saved_at if shared else None,
        )


def save(ctx: Context, access: Access, page: ChartPage, layout: dict[str, Any], *, shared: bool) -> None:
    """Save a layout, replacing the one before."""
    owner = _SHARED if shared else access.principal.user_id

    def work(session: Session) -> None:
        row = session.get(ChartLayout, (access.workspace_id, page, owner))
        if row is None:
            row = ChartLayout(workspace_id=access.workspace_id, page=page, user_id=owner)
            session.add(row)
        row.layout, row.saved_by, row.saved_at = layout, access.principal.email, utcnow()

    ctx.db.write(work)


def delete(ctx: Context, access: Access, page: ChartPage, *, shared: bool) -> None:
    """Delete a layout; nothing happens if there is none."""
    owner = _SHARED if shared else access.principal.user_id

    def work(session: Session) -> None:
        row = session.get(ChartLayout, (access.workspace_id, page, owner))
        if row is not None:
            session.delete(row)

    ctx.db.write(work)
