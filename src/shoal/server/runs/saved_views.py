"""Saved views: queries over the runs of a workspace, under a name, shared by its members."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.names import check_name, did_you_mean
from shoal.core.run_filter import parse
from shoal.core.runs import RunsView, RunsViewSave
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.runs import RunsView as Row
from shoal.server.policy import Access

MAX_VIEWS = 200


def list_views(ctx: Context, access: Access) -> list[RunsView]:
    """List the saved views of the workspace by name."""
    with ctx.db.read() as session:
        rows = session.scalars(select(Row).where(Row.workspace_id == access.workspace_id).order_by(Row.name))
        return [_view(row) for row in rows]


def get(ctx: Context, access: Access, name: str) -> RunsView:
    with ctx.db.read() as session:
        return _view(_find(session, access, name))


def save(ctx: Context, access: Access, name: str, request: RunsViewSave) -> RunsView:
    """Save a query under a name, replacing the one that has it."""
    try:
        check_name(name, "view name")
    except ValueError as error:
        raise InvalidSpec(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
    parse(request.q)

    def work(session: Session) -> RunsView:
        row = session.get(Row, (access.workspace_id, name))
        if row is None:
            mine = select(func.count()).select_from(Row).where(Row.workspace_id == access.workspace_id)
            if (session.scalar(mine) or 0) >= MAX_VIEWS:
                raise InvalidSpec(f"A workspace can have at most {MAX_VIEWS} saved views.")
            row = Row(workspace_id=access.workspace_id, name=name)
            session.add(row)
        row.query, row.created_by, row.created_at = request.model_dump(), access.principal.email, utcnow()
        return _view(row)

    return ctx.db.write(work)


def delete(ctx: Context, access: Access, name: str) -> None:
    ctx.db.write(lambda session: session.delete(_find(session, access, name)))


def _find(session: Session, access: Access, name: str) -> Row:
    row = session.get(Row, (access.workspace_id, name))
    if row is None:
        known = session.scalars(select(Row.name).where(Row.workspace_id == access.workspace_id))
        raise NotFound(f"There is no saved view '{name}'.{did_you_mean(name, list(known))}")
    return row


def _view(row: Row) -> RunsView:
    saved = RunsViewSave.model_validate(row.query)
    return RunsView(name=row.name, created_by=row.created_by, created_at=row.created_at, **saved.model_dump())
