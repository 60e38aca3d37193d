"""Trust between peers, as the coordinator judged it: reports, removals with their evidence, and accepted work."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.people import OWNER_EMAIL
from shoal.core.schema import utcnow
from shoal.core.swarm_views import PeerMark, PeerState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.mail import Letter
from shoal.server.models.swarm import Swarm, SwarmPeer
from shoal.server.swarms import swarm_rows

MOST_MARKS = 20
_MAIL = """Peer '{peer}' was removed from swarm '{swarm}' by its coordinator:
{reason}

The other peers continue without it; what they trained is not lost. Evidence:
{evidence}

Details: shoal swarm inspect {swarm}
To revoke the invitation it used, so that it cannot join again under another name:
shoal swarm kick {swarm} {id} --revoke
"""


def record_mark(session: Session, swarm: Swarm, peer_id: str, mark: PeerMark) -> None:
    """Record that most judges reported a peer, for the first time in several rounds."""
    peer = _find(session, swarm, peer_id)
    if peer is None:
        return
    _add_marks(peer, [mark])
    text = f"peer '{peer.name}' ({peer.id}) was reported by {_many(mark)}: its update was an outlier"
    swarm_rows.record_event(session, swarm.id, "reported", text, peer=peer.id, evidence=[mark.model_dump()])


def record_removal(
    session: Session, swarm: Swarm, peer_id: str, reason: str, marks: list[PeerMark]
) -> tuple[str, str] | None:
    """Record that the coordinator removed a peer; return subject and text of the mail to the owner, or None."""
    peer = _find(session, swarm, peer_id)
    if peer is None or peer.state == PeerState.KICKED:
        return None
    peer.state, peer.reason, peer.left_at = PeerState.KICKED.value, reason, utcnow()
    _add_marks(peer, marks)
    text = f"peer '{peer.name}' ({peer.id}) was removed by the coordinator: {reason}"
    swarm_rows.record_event(
        session, swarm.id, "kicked", text, peer=peer.id, evidence=[mark.model_dump() for mark in marks]
    )
    evidence = "\n".join(f"- reported by {_many(mark)}" for mark in marks) or "- the loss of the swarm"
    body = _MAIL.format(peer=peer.name, id=peer.id, swarm=swarm.name, reason=reason, evidence=evidence)
    return f"Peer '{peer.name}' was removed from swarm '{swarm.name}'", body


def add_credit(session: Session, swarm_id: str, credit: dict[str, int]) -> None:
    """Add the accepted samples of a round to the peers' contributions."""
    for some in in_parts(credit):
        for peer in session.scalars(select(SwarmPeer).where(SwarmPeer.swarm_id == swarm_id, SwarmPeer.id.in_(some))):
            peer.stats = {**peer.stats, "accepted": (peer.stats.get("accepted") or 0) + credit[peer.id]}


def send_mail(ctx: Context, swarm_id: str, to: str, subject: str, text: str) -> None:
    """Send the owner of a swarm an e-mail, if mail is configured; a failure becomes an event of the swarm."""
    if to == OWNER_EMAIL:  # a placeholder, not a real address
        return

    def record_failure(why: str) -> None:
        def work(session: Session) -> None:
            if session.get(Swarm, swarm_id) is not None:
                swarm_rows.record_event(session, swarm_id, "mail_failed", f"no e-mail was sent to {to}: {why}")

        ctx.db.write(work)
        ctx.live.job_changed(swarm_id)

    ctx.mail.send(Letter(to, subject, text, record_failure))


def contribution(stats: dict[str, Any]) -> int:
    """Return a peer's accepted samples; those it claims while no round has been judged (an older coordinator)."""
    return int(stats["accepted"] if "accepted" in stats else stats.get("samples") or 0)


def _find(session: Session, swarm: Swarm, peer_id: str) -> SwarmPeer | None:
    peer = session.get(SwarmPeer, peer_id)
    return peer if peer is not None and peer.swarm_id == swarm.id else None


def _add_marks(peer: SwarmPeer, marks: list[PeerMark]) -> None:
    known = {row["round"]: row for row in peer.stats.get("evidence", [])}
    known |= {mark.round: mark.model_dump() for mark in marks}
    peer.stats = {**peer.stats, "evidence": [known[number] for number in sorted(known)][-MOST_MARKS:]}


def _many(mark: PeerMark) -> str:
    return f"{len(mark.by)} of {mark.of} peer{'s' if mark.of != 1 else ''} that judged it in round {mark.round}"
