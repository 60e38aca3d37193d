"""Sending a peer away from a swarm, for good."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import NotFound, Refused
from shoal.core.names import did_you_mean
from shoal.core.schema import utcnow
from shoal.core.swarm_views import Kick, PeerState, PeerView
from shoal.server.context import Context
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmPeer
from shoal.server.policy import Access
from shoal.server.services import find, swarm_invitations, swarm_rows, swarm_views
from shoal.server.services.swarm_peers import changed


def kick(ctx: Context, access: Access, swarm: str, peer: str, request: Kick) -> PeerView:
    """For good: its key and token open nothing any more. Idempotent."""

    def work(session: Session) -> tuple[str, str]:
        found = find.swarm(session, access, swarm)
        row = _find_peer(session, found, peer)
        if row.state != PeerState.KICKED:
            row.state, row.left_at = PeerState.KICKED.value, utcnow()
            row.reason = request.reason or f"by {access.principal.email}"
            text = f"peer '{row.name}' ({row.id}) was sent away by {access.principal.email}"
            swarm_rows.tell(
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
    """By id, or by name; of several with one name, it must be said which."""
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
            f"{len(there)} peers of swarm '{swarm.name}' are called '{peer}'; say which by its id.",
            hint=f"shoal swarm peers {swarm.name}",
        )
    return there[0]
