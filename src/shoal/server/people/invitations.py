"""Invitations to a workspace: a link that one person uses once, until it expires or is revoked."""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Forbidden, NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.core.invite_links import invite_path
from shoal.core.people import (
    Role,
    WorkspaceInvitationCreated,
    WorkspaceInvitationView,
    WorkspaceInvite,
    WorkspaceView,
)
from shoal.core.schema import utcnow
from shoal.server.audit.record import of_request, record_action
from shoal.server.context import Context
from shoal.server.models.users import User
from shoal.server.models.workspaces import Member, Workspace, WorkspaceInvitation
from shoal.server.people.keys import new_token
from shoal.server.policy import Access, Principal, hash_token

logger = logging.getLogger(__name__)
CODE_PREFIX = "shoali_"
_ASK = "Ask an owner of the workspace for a new one: shoal workspace invite"


def create(ctx: Context, access: Access, body: WorkspaceInvite) -> WorkspaceInvitationCreated:
    """Create an invitation and return its code; only the code's hash is stored."""
    code, now = new_token(CODE_PREFIX), utcnow()
    row = WorkspaceInvitation(
        id=new_id("winv"),
        workspace_id=access.workspace_id,
        email=body.email,
        role=body.role,
        code_hash=hash_token(code),
        created_by=access.principal.email,
        created_at=now,
        expires_at=now + timedelta(seconds=body.expires_in_s),
    )

    def work(session: Session) -> WorkspaceInvitationView:
        session.add(row)
        session.flush()
        record_action(
            session, AuditAction.INVITATION_CREATE, body.email or "anyone", row.id, workspace=access, detail=body.role
        )
        return _view(row, access.workspace)

    made = ctx.db.write(work)
    logger.info("%s invited %s to workspace %s", row.created_by, body.email or "anyone", access.workspace_id)
    return WorkspaceInvitationCreated(**made.model_dump(), code=code, path=invite_path(code))


def list_open(ctx: Context, access: Access) -> list[WorkspaceInvitationView]:
    """Return this workspace's invitations that can still be used, newest first."""
    return _list(ctx, _open().where(WorkspaceInvitation.workspace_id == access.workspace_id))


def list_all_open(ctx: Context) -> list[WorkspaceInvitationView]:
    """Return the invitations of all workspaces that can still be used, newest first."""
    return _list(ctx, _open())


def revoke(ctx: Context, access: Access, id_or_email: str) -> int:
    """Revoke an open invitation by its id, or all open ones for an e-mail address; returns how many."""
    mine = WorkspaceInvitation.workspace_id == access.workspace_id
    hint = "shoal workspace invitations"
    return _revoke(ctx, _open().where(mine), id_or_email, f"to workspace '{access.workspace}'", hint)


def revoke_any(ctx: Context, id_or_email: str) -> int:
    """Revoke an invitation of any workspace, for an admin."""
    return _revoke(ctx, _open(), id_or_email, "on this server", "See /admin in the console.")


def peek(ctx: Context, code: str, *, address: str) -> WorkspaceInvitationView:
    """Return the invitation of a code, for its page. An unknown code counts as a failed try of the address."""
    who = f"invitation from {address}"
    ctx.guards.tries.begin(email=who, address=address)
    with ctx.db.read() as session:
        row = _usable(session, code)
        found = _view(row, session.get_one(Workspace, row.workspace_id).name)
    ctx.guards.tries.forgive(email=who, address=address)
    return found


def join(ctx: Context, principal: Principal, code: str, *, address: str) -> WorkspaceView:
    """Make a person who has an account a member of the workspace."""
    ctx.guards.tries.begin(email=principal.email, address=address)
    found = ctx.db.write(lambda session: redeem(session, code, session.get_one(User, principal.user_id)))
    ctx.guards.tries.forgive(email=principal.email, address=address)
    return found


def check(session: Session, code: str, email: str) -> None:
    """Raise unless an account of this address may use the code."""
    _refuse_other(_usable(session, code), email)


def redeem(session: Session, code: str, user: User) -> WorkspaceView:
    """Make a user a member and mark the code as used.

    Runs inside `db.write`, which runs one transaction at a time, so no code can be used twice.
    """
    row = _usable(session, code)
    _refuse_other(row, user.email)
    if session.get(Member, (row.workspace_id, user.id)) is not None:
        raise NotAllowedNow("You are already a member of this workspace.", hint="shoal workspace list")
    workspace = session.get_one(Workspace, row.workspace_id)
    session.add(Member(workspace_id=row.workspace_id, user_id=user.id, role=row.role))
    row.used_by, row.used_at = user.email, utcnow()
    who, detail = of_request(session, user.email), f"{row.role}, by invitation {row.id} of {row.created_by}"
    record_action(
        session, AuditAction.MEMBER_ADD, user.email, user.id, workspace=workspace.id, detail=detail, actor=who
    )
    logger.info("%s joined workspace %s by the invitation of %s", user.email, workspace.id, row.created_by)
    return WorkspaceView(
        id=workspace.id, name=workspace.name, role=Role(row.role), jobs=0, datasets=0, created_at=workspace.created_at
    )


def _usable(session: Session, code: str) -> WorkspaceInvitation:
    row = session.scalar(select(WorkspaceInvitation).where(WorkspaceInvitation.code_hash == hash_token(code.strip())))
    if row is None:
        raise NotFound("There is no such invitation on this server.", hint=_ASK)
    if row.used_at is not None:
        raise NotFound("This invitation was already used. Each works only once.", hint=_ASK)
    if row.revoked_at is not None:
        raise NotFound("This invitation was revoked.", hint=_ASK)
    if row.expires_at <= utcnow():
        raise NotFound("This invitation has expired.", hint=_ASK)
    if not _still_owner(session, row):
        raise NotFound("The person who made this invitation is no longer an owner of the workspace.", hint=_ASK)
    return row


def _still_owner(session: Session, row: WorkspaceInvitation) -> bool:
    role = select(Member.role).join(User, User.id == Member.user_id)
    mine = role.where(Member.workspace_id == row.workspace_id, User.email == row.created_by, User.disabled_at.is_(None))
    return session.scalar(mine) == Role.OWNER


def _refuse_other(row: WorkspaceInvitation, email: str) -> None:
    if row.email and row.email != email:
        raise Forbidden(f"This invitation is for {row.email}.", hint=_ASK)


def _open() -> Select[WorkspaceInvitation, str]:
    return (
        select(WorkspaceInvitation, Workspace.name)
        .join(Workspace, Workspace.id == WorkspaceInvitation.workspace_id)
        .where(WorkspaceInvitation.used_at.is_(None), WorkspaceInvitation.revoked_at.is_(None))
        .where(WorkspaceInvitation.expires_at > utcnow())
        .order_by(WorkspaceInvitation.id.desc())
    )


def _list(ctx: Context, query: Select[WorkspaceInvitation, str]) -> list[WorkspaceInvitationView]:
    with ctx.db.read() as session:
        return [_view(row, name) for row, name in session.execute(query)]


def _revoke(ctx: Context, query: Select[WorkspaceInvitation, str], which: str, where: str, hint: str) -> int:
    named = or_(WorkspaceInvitation.id == which, WorkspaceInvitation.email == which.strip().lower())

    def work(session: Session) -> int:
        rows = session.execute(query.where(named)).all() if which.strip() else []
        if not rows:
            raise NotFound(f"There is no open invitation '{which}' {where}.", hint=hint)
        for row, _ in rows:
            row.revoked_at = utcnow()
            whom = row.email or "anyone"
            record_action(session, AuditAction.INVITATION_REVOKE, whom, row.id, workspace=row.workspace_id)
        return len(rows)

    return ctx.db.write(work, essential=True)


def _view(row: WorkspaceInvitation, workspace: str) -> WorkspaceInvitationView:
    is_open = row.used_at is None and row.revoked_at is None and row.expires_at > utcnow()
    return WorkspaceInvitationView(
        id=row.id,
        workspace=workspace,
        email=row.email,
        role=Role(row.role),
        created_by=row.created_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        used_by=row.used_by,
        used_at=row.used_at,
        revoked_at=row.revoked_at,
        is_open=is_open,
    )
