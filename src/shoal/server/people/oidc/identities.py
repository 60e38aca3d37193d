"""Accounts of people who sign in with a service: one that is connected, one with the same address, or a new one.

An address alone connects nothing: on a server with open sign-up, anyone can have made an account with the address of someone
else and know its password. So an existing account is connected only by someone who is signed in to it, or if its address was
verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Forbidden, NameTaken, NotAllowedNow, NotFound
from shoal.core.people import ConnectedService, SessionView, check_email
from shoal.core.schema import utcnow
from shoal.server.audit.record import of_request, record_action
from shoal.server.context import Context
from shoal.server.models.users import Identity, User
from shoal.server.models.workspaces import Member, WorkspaceInvitation
from shoal.server.people import invitations
from shoal.server.people.accounts import add_user, has_accounts
from shoal.server.people.oidc.services import Service
from shoal.server.people.sign_in import start_session
from shoal.server.policy import Principal, hash_token

_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Person:
    """A person as a sign-in service describes them."""

    subject: str
    email: str
    """Empty if the service names none."""
    is_verified: bool
    name: str


def describe(service: Service, claims: Mapping[str, Any]) -> Person:
    """Return the person whom verified claims describe."""
    try:
        email = check_email(str(claims.get("email") or ""))
    except ValueError:
        email = ""
    said = claims.get("email_verified")
    is_verified = bool(email) and (service.trust_email or said is True or said == "true")
    name = str(claims.get("name") or "")
    return Person(claims["sub"], email, is_verified, name.strip()[:_LONGEST_NAME] if name.isprintable() else "")


def sign_in(ctx: Context, service: Service, person: Person, *, invitation: str, program: str) -> SessionView:
    """Start a session for a person, after connecting or creating an account if there is none yet."""

    def work(session: Session) -> SessionView:
        user = _connected(session, service, person.subject) or _adopt(ctx, session, service, person, invitation)
        if user.disabled_at is not None:
            raise Forbidden("This account is disabled. Ask an admin of this server.")
        joined = _join(session, invitation, user)
        view = start_session(session, user, program=f"{program} with {service.title}".strip())
        return view.model_copy(update={"joined": joined})

    return ctx.db.write(work)


def connect(ctx: Context, service: Service, person: Person, principal: Principal) -> None:
    """Connect a person at a sign-in service to the account that is signed in."""

    def work(session: Session) -> None:
        other = _connected(session, service, person.subject)
        if other is not None and other.id != principal.user_id:
            raise NameTaken(f"That account at {service.title} is already connected to another account of this server.")
        if other is None:
            _add(session, service, person, session.get_one(User, principal.user_id))

    ctx.db.write(work)


def disconnect(ctx: Context, principal: Principal, name: str) -> None:
    """Remove the connection to a service, unless it is the person's only way to sign in."""
    service = ctx.sign_in_services.get(name)

    def work(session: Session) -> None:
        user = session.get_one(User, principal.user_id)
        mine = session.scalars(select(Identity).where(Identity.user_id == user.id)).all()
        gone = [row for row in mine if row.issuer == service.issuer]
        if not gone:
            raise NotFound(f"Your account is not connected to {service.title}.")
        if user.password_hash is None and len(mine) == len(gone):
            raise NotAllowedNow(
                f"{service.title} is your only way to sign in: set a password first.", hint="shoal password --lost"
            )
        for row in gone:
            session.delete(row)
        record_action(session, AuditAction.IDENTITY_DISCONNECT, user.email, user.id, detail=service.title)

    ctx.db.write(work)


def list_connected(ctx: Context, principal: Principal) -> list[ConnectedService]:
    """Return the server's sign-in services, each with the person's account there, if it is connected."""
    with ctx.db.read() as session:
        rows = session.scalars(select(Identity).where(Identity.user_id == principal.user_id)).all()
    mine = {row.issuer: row.email for row in rows}
    return [
        ConnectedService(name=one.name, title=one.title, email=mine.get(one.issuer))
        for one in ([] if ctx.private else ctx.sign_in_services.list())
    ]


def _connected(session: Session, service: Service, subject: str) -> User | None:
    row = session.get(Identity, (service.issuer, subject))
    return session.get_one(User, row.user_id) if row is not None else None


def _adopt(ctx: Context, session: Session, service: Service, person: Person, invitation: str) -> User:
    """Return the account for a person who signs in with a service for the first time."""
    if not person.is_verified:
        raise Forbidden(
            f"{service.title} has not verified your e-mail address, so it cannot be used here for the first sign-in.",
            hint="Sign in with a password, then connect it under Settings.",
        )
    user = session.scalar(select(User).where(User.email == person.email))
    if user is not None:
        if user.email_verified_at is None:
            raise NameTaken(
                f"There already is an account for {person.email}. Sign in to it with its password, then connect "
                f"{service.title} under Settings.",
                hint="If the password is lost: shoal password --lost",
            )
    else:
        user = _create(ctx, session, service, person, invitation)
    user.email_verified_at = utcnow()
    _add(session, service, person, user)
    return user


def _create(ctx: Context, session: Session, service: Service, person: Person, invitation: str) -> User:
    if not has_accounts(session):
        raise Forbidden(
            "This server has no accounts yet. Its first one, the admin's, needs the setup code and a password.",
            hint="shoal server status, then: shoal signup --setup-code CODE",
        )
    if invitation:
        invitations.check(session, invitation, person.email)
    elif not (ctx.settings.sign_up or service.creates_for(person.email)):
        raise Forbidden(
            f"There is no account for {person.email} on this server, and {service.title} may not create one.",
            hint="Ask an owner of a workspace for an invitation: shoal workspace invite",
        )
    return add_user(session, email=person.email, name=person.name, password_hash=None, is_admin=False)


def _add(session: Session, service: Service, person: Person, user: User) -> None:
    session.add(
        Identity(
            issuer=service.issuer, subject=person.subject, user_id=user.id, email=person.email, created_at=utcnow()
        )
    )
    session.flush()
    who = of_request(session, user.email)
    detail = f"{service.title}: {person.email or person.subject}"
    record_action(session, AuditAction.IDENTITY_CONNECT, user.email, user.id, detail=detail, actor=who)


def _join(session: Session, invitation: str, user: User) -> Any:
    """Accept an invitation, unless the person is a member of its workspace already."""
    if not invitation:
        return None
    found = select(WorkspaceInvitation.workspace_id).where(WorkspaceInvitation.code_hash == hash_token(invitation))
    workspace_id = session.scalar(found)
    if workspace_id is not None and session.get(Member, (workspace_id, user.id)) is not None:
        return None
    return invitations.redeem(session, invitation, user)
