"""Quotas of workspaces: slots they may hold at one time, and their weight in the queue.

Set by admins, checked at submit and start.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import CanNeverRun, InvalidSpec, NotFound, UsageError
from shoal.core.gpu_models import is_model
from shoal.core.ids import is_id
from shoal.core.jobs import JobSpec
from shoal.core.names import did_you_mean
from shoal.core.queue import QuotaSet, QuotaView
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.engines.base import Machine
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.users import User
from shoal.server.models.workspaces import Workspace
from shoal.server.policy import Access

_OPEN_NODES = (
    select(Job.workspace_id, Node.slots)
    .join(Attempt, Attempt.job_id == Job.id)
    .join(Node, Node.attempt_id == Attempt.id)
    .where(Attempt.state != AttemptState.ENDED.value)
    .where(Node.state.not_in([s.value for s in NodeState if s.is_terminal]))
)


def list_quotas(ctx: Context) -> list[QuotaView]:
    """Return the quotas of all workspaces, sorted by owner and name."""
    with ctx.db.read() as session:
        return _views(session)


def set_quota(ctx: Context, reference: str, body: QuotaSet) -> QuotaView:
    """Change a workspace's quota or weight. It applies to the next starts; running jobs are not affected."""

    def work(session: Session) -> QuotaView:
        row = _find(session, reference)
        if body.slots is not None or body.unlimited:
            row.slot_quota = None if body.unlimited else body.slots
        if body.weight is not None:
            row.share = body.weight
        if body.models:
            known = {**row.model_quotas, **body.models}
            row.model_quotas = {model: quota for model, quota in sorted(known.items()) if quota is not None}
        slots = "any number of" if row.slot_quota is None else row.slot_quota
        models = "".join(f", {quota} {model}" for model, quota in row.model_quotas.items())
        detail = f"{slots} slots{models}, weight {row.share:g}"
        record_action(session, AuditAction.QUOTA_CHANGE, row.name, row.id, workspace=row.id, detail=detail)
        session.flush()
        return _views(session, row.id)[0]

    view = ctx.db.write(work)
    ctx.live.scheduler.set()
    return view


def changed_models(ctx: Context, reference: str, text: str) -> dict[str, int | None]:
    """Return the change that makes a text such as `H100=8, A100=4` the model quotas of a workspace."""
    with ctx.db.read() as session:
        wanted: dict[str, int | None] = dict.fromkeys(_find(session, reference).model_quotas)
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, _, count = (word.strip() for word in part.rpartition("="))
        if not model or not (count.isascii() and count.isdigit()):
            raise InvalidSpec(f"{part!r} is not a quota of a model.", hint="H100=8, A100=4")
        wanted[model] = int(count)
    return wanted


def has_room(session: Session, workspace_id: str, slots: int) -> bool:
    """Check whether a workspace may hold more slots.

    Call it in the transaction that takes the slots, so that a quota is never exceeded, not even for a moment.
    """
    quota = session.scalar(select(Workspace.slot_quota).where(Workspace.id == workspace_id))
    return quota is None or held(session, workspace_id) + slots <= quota


def held(session: Session, workspace_id: str) -> int:
    found = session.execute(_OPEN_NODES.where(Job.workspace_id == workspace_id))
    return sum(len(slots) for _, slots in found)


def refuse_larger(session: Session, access: Access, spec: JobSpec) -> None:
    """Raise CanNeverRun for a job that is larger than its workspace's whole quota and so would wait forever."""
    quota = session.scalar(select(Workspace.slot_quota).where(Workspace.id == access.workspace_id))
    if quota is not None and spec.min_slots > quota:
        raise CanNeverRun(
            f"{spec.min_nodes} node(s) × {spec.accels} slot(s) can never run in workspace '{access.workspace}': "
            f"its jobs may hold {quota} slot(s) at once.",
            hint=f"ask an admin for more: shoal queue quota {access.workspace_id} --slots {spec.min_slots}",
            details={"quota": quota},
        )
    models = session.scalar(select(Workspace.model_quotas).where(Workspace.id == access.workspace_id)) or {}
    for model, most in models.items():
        if spec.gpu and is_model(spec.gpu, model) and spec.min_slots > most:
            raise CanNeverRun(
                f"{spec.min_nodes} node(s) × {spec.accels} {spec.gpu} slot(s) can never run in workspace "
                f"'{access.workspace}': its jobs may hold {most} {model} at once.",
                hint=f"ask an admin for more: shoal queue quota {access.workspace_id} --model {model}={spec.min_slots}",
                details={"quota": most},
            )


def check_machines(pool: Iterable[Machine], names: Iterable[str]) -> None:
    known = [m.name for m in pool]
    for name in names:
        if name not in known:
            raise NotFound(f"There is no machine '{name}'.{did_you_mean(name, known)}", hint="shoal machine list")


def _find(session: Session, reference: str) -> Workspace:
    """Return a workspace by id, or by name if only one has that name."""
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
            models=row.model_quotas,
            weight=row.share,
            in_use=in_use.get(row.id, 0),
            queued=queued.get(row.id, 0),
        )
        for row, email in session.execute(rows.where(Workspace.id == only) if only else rows)
    ]
