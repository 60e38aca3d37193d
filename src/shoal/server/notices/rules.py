"""Rules of people and workspaces, and the notices of a person in the console."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from shoal.core.errors import Forbidden, InvalidSpec, NotFound
from shoal.core.ids import new_id
from shoal.core.notices import Channel, Inbox, Notice, RuleMade, RuleSave, RuleView
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.notices import NoticeDelivery, NoticeRow, NoticeRule
from shoal.server.models.users import User
from shoal.server.models.workspaces import Member
from shoal.server.policy import Access, Principal
from shoal.server.ssrf_guard import Guard

MAX_RULES, MOST_NOTICES = 100, 100


def list_rules(ctx: Context, access: Access) -> list[RuleView]:
    """List your own rules in this workspace and those that it shares."""
    with ctx.db.read() as session:
        rows = session.scalars(
            select(NoticeRule)
            .where(NoticeRule.workspace_id == access.workspace_id, _visible(access))
            .order_by(NoticeRule.id)
        ).all()
        return [_view(session, row) for row in rows]


def add(ctx: Context, access: Access, request: RuleSave) -> RuleMade:
    """Add a rule. Rules of the workspace are made by its members, not by viewers."""
    if request.shared and not access.role.covers(Role.MEMBER):
        raise Forbidden("Rules of the workspace need the role 'member'; a rule of your own does not.")
    guard = Guard(private=ctx.private)
    for channel in request.channels:
        if channel.type != "email":
            guard.parse(channel.to)
    rule_id = new_id("rule")

    def work(session: Session) -> RuleView:
        _check_addresses(session, access, request.channels)
        mine = session.scalar(select(func.count()).where(NoticeRule.workspace_id == access.workspace_id))
        if (mine or 0) >= MAX_RULES:
            raise InvalidSpec(f"A workspace can have at most {MAX_RULES} rules.", hint="shoal notify list")
        row = NoticeRule(
            id=rule_id, workspace_id=access.workspace_id, user_id=access.principal.user_id, shared=request.shared,
            kind=request.kind, jobs=request.jobs, metric=request.metric, value=request.value,
            channels=[channel.model_dump() for channel in request.channels], created_by=access.principal.email,
            created_at=utcnow(),
        )  # fmt: skip
        session.add(row)
        session.flush()
        return _view(session, row)

    return RuleMade(rule=ctx.db.write(work), secret=secret(ctx, rule_id))


def remove(ctx: Context, access: Access, rule_id: str) -> None:
    """Delete a rule; what it has still to send is not sent."""

    def work(session: Session) -> None:
        session.delete(find(session, access, rule_id))

    ctx.db.write(work)


def find(session: Session, access: Access, rule_id: str) -> NoticeRule:
    """Return a rule that the person may change."""
    row = session.get(NoticeRule, rule_id)
    seen = row is not None and row.workspace_id == access.workspace_id
    if row is None or not seen or not (row.shared or row.user_id == access.principal.user_id):
        raise NotFound(f"There is no rule '{rule_id}' in workspace '{access.workspace}'.", hint="shoal notify list")
    if row.user_id != access.principal.user_id and not access.role.covers(Role.MEMBER):
        raise Forbidden("Rules of the workspace can be changed by its members, not by viewers.")
    return row


def secret(ctx: Context, rule_id: str) -> str:
    """Return the secret that signs the webhooks of a rule; derived from the server's key, so it is not stored."""
    return ctx.vault.derive(f"notices {rule_id}")


def inbox(ctx: Context, principal: Principal) -> Inbox:
    """Return the newest notices of a person."""
    with ctx.db.read() as session:
        rows = session.scalars(
            select(NoticeRow)
            .where(NoticeRow.user_id == principal.user_id)
            .order_by(NoticeRow.id.desc())
            .limit(MOST_NOTICES)
        )
        found = [
            Notice(id=r.id, kind=r.kind, title=r.title, text=r.text, path=r.path, at=r.at, read=r.read_at is not None)  # type: ignore[arg-type]
            for r in rows
        ]
    return Inbox(notices=found, unread=unread(ctx, principal))


def unread(ctx: Context, principal: Principal) -> int:
    """Return the number of notices that a person has not read."""
    query = select(func.count()).where(NoticeRow.user_id == principal.user_id, NoticeRow.read_at.is_(None))
    with ctx.db.read() as session:
        return session.scalar(query) or 0


def mark_read(ctx: Context, principal: Principal) -> None:
    """Mark all notices of a person as read."""
    mine = (NoticeRow.user_id == principal.user_id) & NoticeRow.read_at.is_(None)
    ctx.db.write(lambda session: session.execute(update(NoticeRow).where(mine).values(read_at=utcnow())) and None)


def _visible(access: Access) -> ColumnElement[bool]:
    return or_(NoticeRule.shared.is_(True), NoticeRule.user_id == access.principal.user_id)


def _check_addresses(session: Session, access: Access, channels: Sequence[Channel]) -> None:
    """Raise unless e-mail goes to members only: the server must not send to strangers."""
    wanted = {channel.to for channel in channels if channel.type == "email" and channel.to}
    known = set(
        session.scalars(
            select(User.email)
            .join(Member, Member.user_id == User.id)
            .where(Member.workspace_id == access.workspace_id, User.email.in_(wanted))
        )
    )
    if unknown := sorted(wanted - known):
        raise InvalidSpec(
            f"'{unknown[0]}' is not a member of workspace '{access.workspace}'; notices are sent to members only.",
            hint="shoal workspace members",
        )


def _view(session: Session, row: NoticeRule) -> RuleView:
    last = session.scalar(
        select(NoticeDelivery).where(NoticeDelivery.rule_id == row.id).order_by(NoticeDelivery.id.desc()).limit(1)
    )
    return RuleView(
        id=row.id, kind=row.kind, jobs=row.jobs, metric=row.metric, value=row.value,  # type: ignore[arg-type]
        channels=[Channel(**channel) for channel in row.channels], shared=row.shared, created_by=row.created_by,
        created_at=row.created_at, last_sent_at=last.sent_at if last else None, last_error=last.error if last else None,
    )  # fmt: skip
