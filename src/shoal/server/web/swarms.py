"""What a swarm's page shows: who is there and what each has given, rounds for the charts, ways in, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import select
from starlette.requests import Request

from shoal.core.invitations import link_of
from shoal.core.schema import View
from shoal.core.swarm_views import PeerState, PeerView, SwarmView
from shoal.server.context import Context
from shoal.server.models.swarm import SwarmRound
from shoal.server.policy import Access
from shoal.server.services import swarm_invitations
from shoal.server.services import swarms as service

MOST_ROUNDS = 1_200
"""More could not be told apart."""
_SHOWN = ("round", "loss", "performance", "alive", "seconds", "bytes", "averaged")
_HERE = (PeerState.TRAINING, PeerState.JOINING)
Row = TypeVar("Row")


class Rounds(View):
    """In columns, by number."""

    total: int
    """How many there are; some are left out where they are many."""
    round: list[int]
    loss: list[float | None]
    performance: list[float | None]
    alive: list[int | None]
    seconds: list[float | None]
    bytes: list[int | None]
    averaged: list[float | None]


def page_data(ctx: Context, access: Access, swarm: SwarmView) -> dict[str, Any]:
    peers = service.peers(ctx, access, swarm.id)
    return {
        "swarm": swarm,
        "peers": sorted(peers, key=_place),
        "here": sum(peer.state in _HERE for peer in peers),
        "invitations": swarm_invitations.list_invitations(ctx, access, swarm.id),
        "checkpoints": list(reversed(service.list_checkpoints(ctx, access, swarm.id))),
    }


def rounds(ctx: Context, swarm: SwarmView) -> Rounds:
    columns = [getattr(SwarmRound, name) for name in _SHOWN]
    mine = select(*columns).where(SwarmRound.swarm_id == swarm.id).order_by(SwarmRound.round)
    with ctx.db.read() as session:
        told = [tuple(row) for row in session.execute(mine)]
    chosen = thin(told)
    return Rounds(total=len(told), **{name: [row[at] for row in chosen] for at, name in enumerate(_SHOWN)})


def thin(rows: Sequence[Row]) -> list[Row]:
    """One in so many, the first and the newest among them."""
    if len(rows) <= MOST_ROUNDS:
        return list(rows)
    return [rows[at * (len(rows) - 1) // (MOST_ROUNDS - 1)] for at in range(MOST_ROUNDS)]


def join_link(request: Request, token: str) -> str:
    """As whoever looks at the page reaches the server; others may need another name for it."""
    return link_of(str(request.base_url), token)


def _place(peer: PeerView) -> tuple[bool, float, str]:
    """Those who are here first, whoever has given most among them."""
    return peer.state not in _HERE, -peer.share, peer.name
