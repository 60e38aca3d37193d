"""Search by name over all workspaces of a person: jobs, sweeps, swarms, datasets and checkpoints."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from shoal.core.search_results import Found, FoundKind
from shoal.server.context import Context
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Job
from shoal.server.models.swarm import Swarm
from shoal.server.models.sweeps import Sweep
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.policy import Principal

MOST_OF_A_KIND = 12
_KINDS: tuple[tuple[FoundKind, Any, str, str | None], ...] = (
    ("job", Job, "jobs", "state"),
    ("sweep", Sweep, "sweeps", "state"),
    ("swarm", Swarm, "swarms", "state"),
    ("dataset", Dataset, "datasets", "status"),
    ("checkpoint", Checkpoint, "checkpoints", None),
)


def find(ctx: Context, principal: Principal, text: str) -> list[Found]:
    """Return what matches, best first: equal names, then names that begin with the text, then newer ones."""
    words = text.lower().split()
    with ctx.db.read() as session:
        mine = {
            row.id: row.name
            for row in session.execute(
                select(Workspace.id, Workspace.name)
                .join(Member, Member.workspace_id == Workspace.id)
                .where(Member.user_id == principal.user_id)
            )
        }
        found = [one for kind in _KINDS for one in _of_kind(session, kind, mine, words)]
    wanted = text.lower()

    def rank(one: Found) -> tuple[Any, ...]:
        return (one.name.lower() != wanted, not one.name.lower().startswith(wanted), -one.created_at.timestamp())

    return sorted(found, key=rank)


def _of_kind(
    session: Session, kind: tuple[FoundKind, Any, str, str | None], mine: dict[str, str], words: list[str]
) -> list[Found]:
    name, model, folder, state = kind
    where = [model.workspace_id.in_(list(mine))]
    for word in words:
        texts = [model.name, model.id]
        if model is Job:
            texts += [Job.title, func.coalesce(Job.tags, "")]
        where.append(or_(*(func.lower(text).contains(word, autoescape=True) for text in texts)))
    if model is Job:
        where += [Job.kind == "job", Job.archived_at.is_(None)]
    rows = session.scalars(select(model).where(*where).order_by(model.id.desc()).limit(MOST_OF_A_KIND))
    return [
        Found(
            kind=name, id=row.id, name=row.name, title=row.title if model is Job else "",
            status=getattr(row, state) if state and hasattr(row, state) else "", workspace=mine[row.workspace_id],
            path=_path(row, folder, name), created_at=row.created_at,
        )
        for row in rows
    ]  # fmt: skip


def _path(row: Any, folder: str, kind: FoundKind) -> str:
    base = f"/w/{quote(row.workspace_id, safe='')}/{folder}"
    return base if kind == "checkpoint" else f"{base}/{quote(row.id, safe='')}"
