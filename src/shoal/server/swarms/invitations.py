"""Invitations to a swarm: signed with its key, and valid until they expire, are revoked, or reach their limit of peers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import KeyExpired, NotFound, NotSignedIn, Refused
from shoal.core.ids import new_id
from shoal.core.invitations import Invitation, check_time, seal, unseal
from shoal.core.schema import utcnow
from shoal.core.swarm_views import INVITATION_HEADER, InvitationCreate, InvitationCreated, InvitationView
from shoal.server import lookup
from shoal.server.audit.record import record_action
from shoal.server.context import Context, Ctx
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmPeer
from shoal.server.policy import Access, Policy
from shoal.server.swarms import swarm_rows
from shoal.server.swarms import views as swarm_views

_ASK = "Ask the sender for a new one: shoal swarm invite NAME"


@dataclass(frozen=True, slots=True)
class Guest:
    """Caller with a valid invitation to a swarm."""

    swarm_id: str
    invitation_id: str


class InvitedOnly(Policy):
    def __call__(self, request: Request, ctx: Ctx) -> Guest:
        token = request.headers.get(INVITATION_HEADER, "")
        if not token:
            raise NotSignedIn("This needs an invitation to a swarm.", hint="shoal swarm join LINK")
        return guest(ctx, token)


def guest(ctx: Context, token: str) -> Guest:
    """Return the caller that this invitation token identifies; raise with the reason if it is not valid."""
    invitation = unseal(token)
    with ctx.db.read() as session:
        row = session.get(SwarmInvitation, invitation.id)
        swarm = session.get(Swarm, row.swarm_id) if row else None
        if row is None or swarm is None or swarm.owner_key != invitation.owner_key:
            raise NotSignedIn("This server does not know that link; its swarm may have been deleted.", hint=_ASK)
        _refuse_revoked(row)
        check_time(invitation)
        return Guest(swarm.id, row.id)


def create(ctx: Context, access: Access, swarm: str, request: InvitationCreate) -> InvitationCreated:
    with ctx.db.read() as session:
        row = lookup.swarm(session, access, swarm)
        key = swarm_rows.signing_key(ctx, row)
    now = utcnow().replace(microsecond=0)
    made = SwarmInvitation(
        id=new_id("inv"),
        swarm_id=row.id,
        name=request.name,
        created_by=access.principal.email,
        created_at=now,
        expires_at=now + timedelta(seconds=request.expires_in_s),
        revoked_at=None,
        max_peers=request.max_peers,
    )
    token = seal(Invitation(made.id, int(made.expires_at.timestamp()), row.owner_key), key)

    def work(session: Session) -> InvitationView:
        session.add(made)
        session.flush()
        until = f"{made.expires_at:%Y-%m-%d %H:%M} UTC"
        swarm_rows.record_event(
            session, row.id, "invited", f"invitation '{made.name}' by {made.created_by}, until {until}"
        )
        record_action(
            session, AuditAction.SWARM_INVITE, row.name, row.id, workspace=access, detail=f"invitation {made.id}"
        )
        return swarm_views.invitation(made, 0)

    return InvitationCreated(**ctx.db.write(work).model_dump(), token=token)


def list_invitations(ctx: Context, access: Access, swarm: str) -> list[InvitationView]:
    with ctx.db.read() as session:
        return swarm_views.invitations(session, lookup.swarm(session, access, swarm).id)


def revoke(ctx: Context, access: Access, swarm: str, invitation: str) -> None:
    """Revoke an invitation by name or id; if several have the name, all of them. Peers that joined with it stay."""

    def work(session: Session) -> None:
        found = lookup.swarm(session, access, swarm)
        mine = SwarmInvitation.swarm_id == found.id
        named = (SwarmInvitation.id == invitation) | (SwarmInvitation.name == invitation)
        rows = session.scalars(select(SwarmInvitation).where(mine, named)).all()
        if not rows:
            raise NotFound(
                f"Swarm '{found.name}' has no invitation '{invitation}'.", hint=f"shoal swarm invitations {found.name}"
            )
        for row in rows:
            revoke_row(session, row, access.principal.email)
            detail = f"invitation {row.id}"
            record_action(session, AuditAction.SWARM_UNINVITE, found.name, found.id, workspace=access, detail=detail)

    ctx.db.write(work, essential=True)


def revoke_row(session: Session, row: SwarmInvitation, by: str) -> None:
    if row.revoked_at is None:
        row.revoked_at = utcnow()
        swarm_rows.record_event(session, row.swarm_id, "revoked", f"invitation '{row.name}' revoked by {by}")


def refuse_full(session: Session, invitation_id: str) -> SwarmInvitation:
    """Return the invitation; raise if it is revoked or has reached its limit of peers."""
    row = session.get_one(SwarmInvitation, invitation_id)
    _refuse_revoked(row)
    joined = session.scalar(select(func.count()).where(SwarmPeer.invitation_id == row.id)) or 0
    if row.max_peers is not None and joined >= row.max_peers:
        limit = f"{row.max_peers} peer{'s' if row.max_peers != 1 else ''}"
        raise Refused(f"This invitation has reached its limit of {limit}.", hint=_ASK)
    return row


def _refuse_revoked(row: SwarmInvitation) -> None:
    if row.revoked_at is not None:
        raise KeyExpired("This link was revoked by the swarm's owner.", hint=_ASK)
