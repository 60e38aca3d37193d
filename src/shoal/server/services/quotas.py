"""How many slots a workspace may hold at once, and its weight in the queue. Admins set them; starts and submits obey."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import CanNeverRun, NotFound, UsageError
from shoal.core.ids import is_id
from shoal.core.jobs import JobSpec
from shoal.core.names import did_you_mean
from shoal.core.queue import QuotaSet, QuotaView
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.engines.base import Machine
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.people import User, Workspace
from shoal.server.policy import Access

_OPEN_NODES = (
    select(Job.workspace_id, Node.slots)
    .join(Attempt, Attempt.job_id == Job.id)
    .join(Node, Node.attempt_id == Attempt.id)
    .where(Attempt.state != AttemptState.ENDED.value)
    .where(Node.state.not_in([s.value for s in NodeState if s.is_terminal]))
)


def list_quotas(ctx: Context) -> list[QuotaView]:
    """Of every workspace, by owner and name."""
    with ctx.db.read() as session:
        return _views(session)


def set_quota(ctx: Context, reference: str, body: QuotaSet) -> QuotaView:
    """At once for jobs that have not started; running ones are left alone."""

    def work(session: Session) -> QuotaView:
        row = _find(session, reference)
        if body.slots is not None or body.unlimited:
            row.slot_quota = None if body.unlimited else body.slots
        if body.weight is not None:
            row.share = body.weight
        session.flush()
        return _views(session, row.id)[0]

    view = ctx.db.write(work)
    ctx.live.scheduler.set()
    return view


def has_room(session: Session, workspace_id: str, slots: int) -> bool:
    """Looked at in the very transaction that takes the slots: a quota is never exceeded, not even for a moment."""
    quota = session.scalar(select(Workspace.slot_quota).where(Workspace.id == workspace_id))
    return quota is None or held(session, workspace_id) + slots <= quota


def held(session: Session, workspace_id: str) -> int:
    found = session.execute(_OPEN_NODES.where(Job.workspace_id == workspace_id))
    return sum(len(slots) for _, slots in found)


def refuse_larger(session: Session, access: Access, spec: JobSpec) -> None:
    """What alone is larger than its workspace's quota would wait for ever."""
    quota = session.scalar(select(Workspace.slot_quota).where(Workspace.id == access.workspace_id))
    if quota is not None and spec.min_slots > quota:
        raise CanNeverRun(
            f"{spec.min_nodes} node(s) × {spec.accels} slot(s) can never run in workspace '{access.workspace}': "
            f"its jobs may hold {quota} slot(s) at once.",
            hint=f"ask an admin for more: shoal queue quota {access.workspace_id} --slots {spec.min_slots}",
            details={"quota": quota},
        )


def check_machines(pool: Iterable[Machine], names: Iterable[str]) -> None:
    known = [m.name for m in pool]
    for name in names:
        if name not in known:
            raise NotFound(f"There is no machine '{name}'.{did_you_mean(name, known)}", hint="shoal machine list")


def _find(session: Session, reference: str) -> Workspace:
    """By id, or by name where only one is named so."""
    column = Workspace.id if is_id(reference, "ws") else Workspace.name
    found = session.scalars(select(Workspace).where(column == reference)).all()
    if not found:
        raise NotFound(f"There is no workspace '{reference}' on this server.", hint="shoal queue quota")
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} people have a workspace '{reference}'.",
            hint=f"shoal queue quota OWNER/{reference} --slots N",
        )
    return found[0]


def _views(session: Session, only: str | None = None) -> list[QuotaView]:
    in_use: dict[str, int] = {}
    for workspace_id, slots in session.execute(_OPEN_NODES):
        in_use[workspace_id] = in_use.get(workspace_id, 0) + len(slots)
    queued: dict[str, int] = {}
    waiting = select(Job.workspace_id).where(Job.state == JobState.QUEUED.value, Job.ended_at.is_(None))
    for workspace_id in session.scalars(waiting):
        queued[workspace_id] = queued.get(workspace_id, 0) + 1
    rows = select(Workspace, User.email).join(User, User.id == Workspace.owner_id).order_by(User.email, Workspace.name)
    return [
        QuotaView(
            workspace_id=row.id,
            workspace=row.name,
            owner=email,
            slots=row.slot_quota,
            weight=row.share,
            in_use=in_use.get(row.id, 0),
            queued=queued.get(row.id, 0),
        )
        for row, email in session.execute(rows.where(Workspace.id == only) if only else rows)
    ]
