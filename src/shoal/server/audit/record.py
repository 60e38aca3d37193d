"""Recording of an action, in the same transaction as the change itself.

A transaction holds SQLite's write lock from its start, and the head is read inside it. So the chain has no forks, even if
a command such as `shoal server backup` writes beside the server.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction, AuditResult
from shoal.core.schema import utcnow
from shoal.server.actor import SERVER, Actor, local_user
from shoal.server.audit import rules
from shoal.server.db import ACTOR, Database
from shoal.server.models.audit import AuditHead, AuditRow
from shoal.server.models.workspaces import Workspace

if TYPE_CHECKING:
    from shoal.server.context import Context
    from shoal.server.models.users import User
    from shoal.server.policy import Access, Principal

_LONGEST = 500


def record_action(
    session: Session,
    action: AuditAction,
    object_: str = "",
    object_id: str = "",
    *,
    workspace: Access | str = "",
    detail: str = "",
    result: AuditResult = "ok",
    actor: Actor | None = None,
) -> None:
    """Append an entry to the audit log, as part of the caller's transaction.

    workspace  the caller's access to it, or its id
    actor      who did it; by default the person of the request that caused the write
    """
    who = actor or _acting(session)
    head = session.get(AuditHead, 1)
    if head is None:
        head = AuditHead(id=1, seq=0, hash=rules.FIRST)
        session.add(head)
    workspace_id, workspace_name = _workspace(session, workspace)
    row = AuditRow(
        seq=head.seq + 1,
        previous=head.hash,
        at_ms=round(utcnow().timestamp() * 1000),
        actor=who.name,
        key_id=who.key_id,
        address=who.address,
        request=who.request,
        action=action.value,
        object=object_[:_LONGEST],
        object_id=object_id,
        workspace=workspace_name,
        workspace_id=workspace_id,
        result=result,
        detail=detail[:_LONGEST],
        hash="",
    )
    row.hash = rules.entry_hash(row)
    session.add(row)
    head.seq, head.hash = row.seq, row.hash
    session.flush()


def of_request(session: Session, email: str) -> Actor:
    """Return who caused the write; if nobody was signed in, the person with this e-mail address, who signs up or joins."""
    who = _acting(session)
    return who if who.name else replace(who, name=email)


def as_person(session: Session, email: str, key_id: str) -> Actor:
    """Return a person as the actor of the present request, with the session that it starts."""
    return replace(_acting(session), name=email, key_id=key_id)


def record_failure(ctx: Context, action: AuditAction, user: User | Principal | None, why: str) -> None:
    """Append an entry about a failed try to prove one's identity.

    For an address without an account nothing that was typed is recorded: it could be a password in the wrong field. Under an
    attack only some failures a minute are written; the next entry says how many were left out.
    """
    left_out = ctx.guards.failures.admit()
    if left_out is None:
        return
    email, user_id = ("", "") if user is None else (user.email, getattr(user, "user_id", "") or getattr(user, "id", ""))
    detail = f"{why}; {left_out} more failures before this one were not listed" if left_out else why
    ctx.db.write(lambda session: record_action(session, action, email, user_id, detail=detail, result="failed"))


def record_locally(
    database: Path,
    action: AuditAction,
    object_: str,
    object_id: str = "",
    *,
    detail: str = "",
    actor: Actor | None = None,
) -> None:
    """Append an entry from outside of the server's own connection. Does nothing in a database of an older version.

    actor  who did it; by default the user of this machine who runs the command
    """
    db, who = Database(database), actor or local_user()

    def work(session: Session) -> None:
        if inspect(session.connection()).has_table(AuditRow.__tablename__):
            record_action(session, action, object_, object_id, detail=detail, actor=who)

    try:
        db.write(work, essential=True)
    finally:
        db.close()


def _acting(session: Session) -> Actor:
    who: Actor = session.info.get(ACTOR) or SERVER
    return who


def _workspace(session: Session, given: Access | str) -> tuple[str, str]:
    if not isinstance(given, str):
        return given.workspace_id, given.workspace
    found = session.get(Workspace, given) if given else None
    return given, found.name if found else ""
