"""Invitations to a swarm: signed with its key, good until they expire or are revoked, for so many peers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.errors import KeyExpired, NotFound, NotSignedIn, Refused
from shoal.core.ids import new_id
from shoal.core.invitations import Invitation, check_time, seal, unseal
from shoal.core.schema import utcnow
from shoal.core.swarm_views import INVITATION_HEADER, InvitationCreate, InvitationCreated, InvitationView
from shoal.server.context import Context, Ctx
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmPeer
from shoal.server.policy import Access, Policy
from shoal.server.services import find, swarm_rows, swarm_views

_ASK = "Ask whoever sent it for a new one: shoal swarm invite NAME"


@dataclass(frozen=True, slots=True)
class Guest:
    """Whoever holds an invitation that opens."""

    swarm_id: str
    invitation_id: str


class InvitedOnly(Policy):
    def __call__(self, request: Request, ctx: Ctx) -> Guest:
        token = request.headers.get(INVITATION_HEADER, "")
        if not token:
            raise NotSignedIn("This needs an invitation to a swarm.", hint="shoal swarm join LINK")
        return guest(ctx, token)


def guest(ctx: Context, token: str) -> Guest:
    """Who comes with this token, or why it does not open."""
    told = unseal(token)
    with ctx.db.read() as session:
        row = session.get(SwarmInvitation, told.id)
        swarm = session.get(Swarm, row.swarm_id) if row else None
        if row is None or swarm is None or swarm.owner_key != told.owner_key:
            raise NotSignedIn("This server does not know that link; its swarm may have been deleted.", hint=_ASK)
        _refuse_revoked(row)
        check_time(told)
        return Guest(swarm.id, row.id)


def create(ctx: Context, access: Access, swarm: str, request: InvitationCreate) -> InvitationCreated:
    with ctx.db.read() as session:
        row = find.swarm(session, access, swarm)
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
        swarm_rows.tell(session, row.id, "invited", f"invitation '{made.name}' by {made.created_by}, until {until}")
        return swarm_views.invitation(made, 0)

    return InvitationCreated(**ctx.db.write(work).model_dump(), token=token)


def list_invitations(ctx: Context, access: Access, swarm: str) -> list[InvitationView]:
    with ctx.db.read() as session:
        return swarm_views.invitations(session, find.swarm(session, access, swarm).id)


def revoke(ctx: Context, access: Access, swarm: str, invitation: str) -> None:
    """By name or id; of several with one name, all. Peers that have joined by it stay."""

    def work(session: Session) -> None:
        found = find.swarm(session, access, swarm)
        mine = SwarmInvitation.swarm_id == found.id
        named = (SwarmInvitation.id == invitation) | (SwarmInvitation.name == invitation)
        rows = session.scalars(select(SwarmInvitation).where(mine, named)).all()
        if not rows:
            raise NotFound(
                f"Swarm '{found.name}' has no invitation '{invitation}'.", hint=f"shoal swarm invitations {found.name}"
            )
        for row in rows:
            revoke_row(session, row, access.principal.email)

    ctx.db.write(work, essential=True)


def revoke_row(session: Session, row: SwarmInvitation, by: str) -> None:
    if row.revoked_at is None:
        row.revoked_at = utcnow()
        swarm_rows.tell(session, row.swarm_id, "revoked", f"invitation '{row.name}' revoked by {by}")


def refuse_full(session: Session, invitation_id: str) -> SwarmInvitation:
    """The invitation, if one more may join by it."""
    row = session.get_one(SwarmInvitation, invitation_id)
    _refuse_revoked(row)
    joined = session.scalar(select(func.count()).where(SwarmPeer.invitation_id == row.id)) or 0
    if row.max_peers is not None and joined >= row.max_peers:
        raise Refused(f"This link was for {row.max_peers} peers, and as many have joined by it.", hint=_ASK)
    return row


def _refuse_revoked(row: SwarmInvitation) -> None:
    if row.revoked_at is not None:
        raise KeyExpired("This link was revoked by the swarm's owner.", hint=_ASK)
