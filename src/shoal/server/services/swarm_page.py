"""What the page behind a join link shows: the way in, and how far the swarm is where its owner wants that seen."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from shoal.core.invitations import link_of
from shoal.core.schema import Utc, View
from shoal.core.swarm_views import RoundView, SwarmState
from shoal.server.context import Context
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmRound
from shoal.server.services import swarm_invitations, swarm_rows, swarm_views

_ROUNDS = 12
_NUMBERS = {"peers", "round", "samples", "loss", "performance"}


class JoinPage(View):
    swarm: str
    status: SwarmState
    command: str
    expires_at: Utc
    shown: bool
    """Whether there are numbers."""
    peers: int = 0
    round: int | None = None
    samples: int | None = None
    loss: float | None = None
    performance: float | None = None
    rounds: list[RoundView] = []
    """The last ones, newest first, without who took part."""


def page(ctx: Context, token: str, server: str) -> JoinPage:
    """`server`: its address, as whoever asks sees it."""
    who = swarm_invitations.guest(ctx, token)
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, who.swarm_id)
        until = session.get_one(SwarmInvitation, who.invitation_id).expires_at
        numbers: dict[str, Any] = {}
        if swarm.spec["public"]:
            newest = session.scalar(select(func.max(SwarmRound.round)).where(SwarmRound.swarm_id == swarm.id)) or 0
            rounds = swarm_views.rounds(session, swarm.id, after=newest - _ROUNDS, limit=_ROUNDS)
            numbers = swarm_views.summary(swarm, swarm_rows.present(session, swarm.id)).model_dump(include=_NUMBERS)
            numbers["rounds"] = [row.model_copy(update={"members": []}) for row in reversed(rounds)]
    return JoinPage(
        swarm=swarm.name,
        status=SwarmState(swarm.state),
        command=f"shoal swarm join {link_of(server, token)}",
        expires_at=until,
        shown=bool(swarm.spec["public"]),
        **numbers,
    )
