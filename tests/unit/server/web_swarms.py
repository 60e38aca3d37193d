"""Swarms as their keepers leave them, without a peer having joined."""

import math
from datetime import timedelta

from shoal.core.ids import new_id
from shoal.core.invitations import new_key
from shoal.core.schema import utcnow
from shoal.core.swarm import SwarmSpec
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmPeer, SwarmRound
from shoal.server.swarms import swarm_rows
from shoal.testing.server import add_source

PEERS = [
    ("gpu-box", "training", 6000, {"device": "NVIDIA A10"}),
    ("laptop", "training", 1500, {"device": "cpu"}),
    ("colab", "joining", 0, {}),
    ("old-one", "left", 2500, {"device": "cpu"}),
]


def add_swarm(ctx, person, name="fish", *, rounds=12, state="running", peers=PEERS, reason=None, **given):
    """Returns its id."""
    source = add_source(ctx, person)
    spec = SwarmSpec(
        **{"name": name, "entry": ["train.py", "--lr", "0.1"], "source_id": source, "target_batch_size": 256} | given
    )
    swarm_id, now, (private, public) = new_id("swm"), utcnow(), new_key()
    told = {"round": rounds, "samples": 10_000, "loss": _loss(rounds), "performance": 410.5} if rounds else None
    swarm = Swarm(
        id=swarm_id, workspace_id=person.workspace_id, name=name, spec=spec.model_dump(mode="json"), source_id=source,
        inputs=[], created_by=person.email, state=state, reason=reason, generation=1, owner_key=public,
        sealed_key=swarm_rows.seal_key(ctx, swarm_id, private), port=4001, progress=told, addresses=[],
        created_at=now - timedelta(hours=2), stopped_at=None if state == "running" else now,
    )  # fmt: skip
    invitation = SwarmInvitation(
        id=new_id("inv"), swarm_id=swarm_id, name="first", created_by=person.email, created_at=now,
        expires_at=now + timedelta(days=7), revoked_at=None, max_peers=None,
    )  # fmt: skip

    def work(session):
        session.add(swarm)
        session.flush()
        session.add(invitation)
        session.flush()
        for number, peer in enumerate(peers):
            session.add(_peer(swarm_id, invitation.id, number, now, *peer))
        session.add_all(_round(swarm_id, number, now) for number in range(1, rounds + 1))
        swarm_rows.record_event(session, swarm_id, "created", f"created by {person.email}")

    ctx.db.write(work)
    return swarm_id


def _peer(swarm_id, invitation_id, number, now, name, state, samples, facts):
    return SwarmPeer(
        id=new_id("peer"), swarm_id=swarm_id, invitation_id=invitation_id, name=name, public_key=f"{number:064x}",
        token_hash=f"{swarm_id} {number}".encode(), token_expires_at=now, state=state, reason=None,
        client_mode=name == "colab", facts=facts, joined_at=now - timedelta(minutes=50 - number), seen_at=now,
        left_at=now if state == "left" else None,
        stats={"samples": samples, "samples_per_s": samples / 20, "loss": 2.5, "round": 12, "bytes_out": 3_200_000}
        if samples else {},
    )  # fmt: skip


def _round(swarm_id, number, now):
    return SwarmRound(
        swarm_id=swarm_id, round=number, at=now - timedelta(minutes=number), loss=_loss(number), samples=number * 800,
        alive=2 + number % 3, performance=400.0 + number, seconds=1.5 + 0.5 * math.sin(number), averaged=1.0,
        bytes=180_000 + 900 * number, members=[],
    )  # fmt: skip


def _loss(number):
    return 1.8 + 3 * math.exp(-number / 9)
