"""Workspaces and who is in them. The last owner can neither leave nor be demoted."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Forbidden, InvalidName, NameTaken, NotAllowedNow, NotFound
from shoal.core.ids import is_id
from shoal.core.people import MemberSet, MemberView, Role, WorkspaceCreate, WorkspaceRename, WorkspaceView
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.swarm import Swarm
from shoal.server.models.users import User
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.people.accounts import add_workspace
from shoal.server.policy import Access, Principal
from shoal.server.swarms import swarm_rows

_JOBS = select(func.count()).where(Job.workspace_id == Workspace.id).scalar_subquery()
_DATASETS = select(func.count(Dataset.name.distinct())).where(Dataset.workspace_id == Workspace.id).scalar_subquery()


def create_workspace(ctx: Context, principal: Principal, body: WorkspaceCreate) -> WorkspaceView:
    _refuse_id(body.name)

    def work(session: Session) -> WorkspaceView:
        if _owned(session, principal.user_id, body.name):
            raise NameTaken(f"You already have a workspace '{body.name}'.", hint="shoal workspace list")
        row = add_workspace(session, owner_id=principal.user_id, name=body.name)
        record_action(session, AuditAction.WORKSPACE_CREATE, row.name, row.id, workspace=row.id)
        return _view(row, Role.OWNER)

    return ctx.db.write(work)


def list_workspaces(ctx: Context, principal: Principal) -> list[WorkspaceView]:
    mine = (
        select(Workspace, Member.role, _JOBS, _DATASETS)
        .join(Member, Member.workspace_id == Workspace.id)
        .where(Member.user_id == principal.user_id)
        .order_by(Workspace.name, Workspace.id)
    )
    with ctx.db.read() as session:
        return [_view(row, Role(role), *counts) for row, role, *counts in session.execute(mine)]


def rename_workspace(ctx: Context, access: Access, body: WorkspaceRename) -> WorkspaceView:
    """Rename a workspace. Running jobs are not affected, because they refer to it by id."""
    _refuse_id(body.name)

    def work(session: Session) -> WorkspaceView:
        row = session.get_one(Workspace, access.workspace_id)
        if _owned(session, row.owner_id, body.name) not in (None, row.id):
            whose = "You already have" if row.owner_id == access.principal.user_id else "Its first owner already has"
            raise NameTaken(f"{whose} a workspace '{body.name}'.", hint="shoal workspace list")
        row.name = body.name
        record_action(session, AuditAction.WORKSPACE_RENAME, body.name, row.id, workspace=access)
        return _view(row, access.role, *session.execute(select(_JOBS, _DATASETS).where(Workspace.id == row.id)).one())

    return ctx.db.write(work)


def delete_workspace(ctx: Context, access: Access) -> None:
    """Delete a workspace with its jobs, secrets and members; refused while it has unfinished jobs or running swarms."""

    def work(session: Session) -> Sequence[str]:
        unfinished = select(Job.name).where(Job.workspace_id == access.workspace_id, Job.ended_at.is_(None))
        if names := session.scalars(unfinished.order_by(Job.id).limit(4)).all():
            shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise NotAllowedNow(
                f"Workspace '{access.workspace}' still has unfinished jobs: {shown}.",
                hint=f"shoal training stop {names[0]}",
            )
        swarm_rows.refuse_running(session, access.workspace_id, access.workspace)
        jobs = select(Job.id).where(Job.workspace_id == access.workspace_id)
        attempts = session.scalars(select(Attempt.id).where(Attempt.job_id.in_(jobs))).all()
        count = session.scalar(select(func.count()).where(Job.workspace_id == access.workspace_id))
        with_jobs = f"with {count} job{'' if count == 1 else 's'}"
        record_action(session, AuditAction.WORKSPACE_DELETE, access.workspace, access.workspace_id, workspace=access,
               detail=with_jobs)  # fmt: skip
        # Jobs are deleted before the sources they refer to; the rest is deleted with the workspace (cascade).
        session.execute(delete(Job).where(Job.workspace_id == access.workspace_id))
        session.execute(delete(Swarm).where(Swarm.workspace_id == access.workspace_id))
        session.execute(delete(Workspace).where(Workspace.id == access.workspace_id))
        return attempts

    for attempt_id in ctx.db.write(work, essential=True):
        ctx.engine.clean(attempt_id)


def list_members(ctx: Context, access: Access) -> list[MemberView]:
    with ctx.db.read() as session:
        rows = session.execute(
            select(User, Member.role)
            .join(Member, Member.user_id == User.id)
            .where(Member.workspace_id == access.workspace_id)
            .order_by(User.email)
        )
        return [_member(user, Role(role)) for user, role in rows]


def set_member(ctx: Context, access: Access, body: MemberSet) -> MemberView:
    """Add someone who has an account here, or change their role."""
    email = body.email.strip().lower()

    def work(session: Session) -> MemberView:
        user = session.scalar(select(User).where(User.email == email))
        if user is None:
            raise NotFound(
                f"Nobody has an account for {email} on this server. An invitation lets them make one.",
                hint=f"shoal workspace invite {email}",
                details={"no_account": email},
            )
        row = session.get(Member, (access.workspace_id, user.id))
        if row is None:
            session.add(Member(workspace_id=access.workspace_id, user_id=user.id, role=body.role))
            record_action(session, AuditAction.MEMBER_ADD, email, user.id, workspace=access, detail=body.role)
        else:
            if body.role != Role.OWNER:
                _hand_over(session, access, row)
            if row.role != body.role:
                was_now = f"{row.role} → {body.role}"
                record_action(session, AuditAction.MEMBER_CHANGE, email, user.id, workspace=access, detail=was_now)
            row.role = body.role
        return _member(user, body.role)

    return ctx.db.write(work)


def remove_member(ctx: Context, access: Access, id_or_email: str) -> None:
    """Remove a member. Owners may remove anyone; everyone may remove themselves."""

    def work(session: Session) -> None:
        row = session.scalar(
            select(Member)
            .join(User, User.id == Member.user_id)
            .where(Member.workspace_id == access.workspace_id)
            .where(or_(User.id == id_or_email, User.email == id_or_email.strip().lower()))
        )
        if row is None:
            raise NotFound(f"'{id_or_email}' is not a member of workspace '{access.workspace}'.")
        if row.user_id != access.principal.user_id and access.role != Role.OWNER:
            raise Forbidden(f"Only an owner of workspace '{access.workspace}' may remove others.")
        _hand_over(session, access, row)
        session.delete(row)
        email = session.get_one(User, row.user_id).email
        record_action(session, AuditAction.MEMBER_REMOVE, email, row.user_id, workspace=access)

    ctx.db.write(work, essential=True)


def _hand_over(session: Session, access: Access, member: Member) -> None:
    """Hand the workspace to another owner if needed, before `member` stops being one; raise if there is no other owner."""
    if member.role != Role.OWNER:
        return
    others = session.scalars(
        select(Member.user_id)
        .where(Member.workspace_id == access.workspace_id, Member.role == Role.OWNER)
        .where(Member.user_id != member.user_id)
        .order_by(Member.user_id)
    ).all()
    if not others:
        raise NotAllowedNow(f"Workspace '{access.workspace}' needs an owner: make someone else one first.")
    workspace = session.get_one(Workspace, access.workspace_id)
    if workspace.owner_id != member.user_id:
        return
    # Names are unique per first owner, so the new one must not own a workspace of this name already.
    successors = [user_id for user_id in others if not _owned(session, user_id, workspace.name)]
    if not successors:
        raise NotAllowedNow(f"Every other owner already has a workspace of their own named '{workspace.name}'.")
    workspace.owner_id = successors[0]


def _refuse_id(name: str) -> None:
    if is_id(name, "ws"):
        raise InvalidName(f"{name!r} looks like a workspace's id; choose another name.")


def _owned(session: Session, user_id: str, name: str) -> str | None:
    return session.scalar(select(Workspace.id).where(Workspace.owner_id == user_id, Workspace.name == name))


def _view(row: Workspace, role: Role, jobs: int = 0, datasets: int = 0) -> WorkspaceView:
    return WorkspaceView(id=row.id, name=row.name, role=role, jobs=jobs, datasets=datasets, created_at=row.created_at)


def _member(user: User, role: Role) -> MemberView:
    return MemberView(user_id=user.id, email=user.email, name=user.name, role=role)
