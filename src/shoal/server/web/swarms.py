"""Data of a swarm's page: peers and their contributions, rounds for the charts, invitations, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import select
from starlette.requests import Request

from shoal.core.invitations import link_of
from shoal.core.schema import View
from shoal.core.swarm_views import PeerState, PeerView, SwarmView
from shoal.server.context import Context
from shoal.server.edge.public_address import address_of
from shoal.server.models.swarm import SwarmRound
from shoal.server.policy import Access
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import service

MOST_ROUNDS = 1_200
"""Maximum number of rounds in a chart; more could not be distinguished."""
_SHOWN = ("round", "loss", "performance", "alive", "seconds", "bytes", "averaged")
_HERE = (PeerState.TRAINING, PeerState.JOINING)
Row = TypeVar("Row")


class Rounds(View):
    """Rounds of a swarm as columns, ordered by number."""

    total: int
    """Number of all rounds; the columns omit some if there are many."""
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
        rows = [tuple(row) for row in session.execute(mine)]
    chosen = thin(rows)
    return Rounds(total=len(rows), **{name: [row[at] for row in chosen] for at, name in enumerate(_SHOWN)})


def thin(rows: Sequence[Row]) -> list[Row]:
    """Return at most `MOST_ROUNDS` evenly spaced rows, including the first and the last."""
    if len(rows) <= MOST_ROUNDS:
        return list(rows)
    return [rows[at * (len(rows) - 1) // (MOST_ROUNDS - 1)] for at in range(MOST_ROUNDS)]


def join_link(ctx: Context, request: Request, token: str) -> str:
    """Return the join link with the server's address as this visitor reaches it. Others may need another address."""
    server = address_of(ctx, request)
    return link_of(server.url, token, server.ca_fingerprint)


def _place(peer: PeerView) -> tuple[bool, float, str]:
    """Return the sort key of a peer: present peers first, then by contribution and name."""
    return peer.state not in _HERE, -peer.share, peer.name
