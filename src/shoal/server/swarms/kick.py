"""Permanent removal of a peer from a swarm."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import NotFound, Refused
from shoal.core.names import did_you_mean
from shoal.core.schema import utcnow
from shoal.core.swarm_views import Kick, PeerState, PeerView
from shoal.server import lookup
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmPeer
from shoal.server.policy import Access
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import swarm_rows
from shoal.server.swarms import views as swarm_views
from shoal.server.swarms.peers import changed


def kick(ctx: Context, access: Access, swarm: str, peer: str, request: Kick) -> PeerView:
    """Remove a peer permanently: its key and token are no longer accepted. Idempotent."""

    def work(session: Session) -> tuple[str, str]:
        found = lookup.swarm(session, access, swarm)
        row = _find_peer(session, found, peer)
        if row.state != PeerState.KICKED:
            row.state, row.left_at = PeerState.KICKED.value, utcnow()
            row.reason = request.reason or f"by {access.principal.email}"
            text = f"peer '{row.name}' ({row.id}) was removed by {access.principal.email}"
            record_action(
                session, AuditAction.SWARM_KICK, found.name, found.id, workspace=access, detail=f"peer {row.id}"
            )
            swarm_rows.record_event(
                session, found.id, "kicked", f"{text}: {request.reason}" if request.reason else text, peer=row.id
            )
        if request.revoke:
            invitation = session.get_one(SwarmInvitation, row.invitation_id)
            swarm_invitations.revoke_row(session, invitation, access.principal.email)
        return found.id, row.id

    swarm_id, peer_id = ctx.db.write(work, essential=True)
    changed(ctx, swarm_id)
    with ctx.db.read() as session:
        return next(view for view in swarm_views.peers(session, swarm_id) if view.id == peer_id)


def _find_peer(session: Session, swarm: Swarm, peer: str) -> SwarmPeer:
    """Return the peer with this id or name; raise Refused if several peers in the swarm have the name."""
    rows = list(session.scalars(select(SwarmPeer).where(SwarmPeer.swarm_id == swarm.id)))
    found = [row for row in rows if row.id == peer] or [row for row in rows if row.name == peer]
    there = [row for row in found if row.state not in swarm_rows.GONE] or found[:1]
    if not there:
        raise NotFound(
            f"Swarm '{swarm.name}' has no peer '{peer}'.{did_you_mean(peer, [row.name for row in rows])}",
            hint=f"shoal swarm peers {swarm.name}",
        )
    if len(there) > 1:
        raise Refused(
            f"{len(there)} peers of swarm '{swarm.name}' are called '{peer}'; use the id of one.",
            hint=f"shoal swarm peers {swarm.name}",
        )
    return there[0]
