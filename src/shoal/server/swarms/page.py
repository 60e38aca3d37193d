"""Content of the page behind a join link: how to join, and the swarm's progress if its owner made it public."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from shoal.core.schema import Utc, View
from shoal.core.swarm_views import RoundView, SwarmState
from shoal.server.context import Context
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmRound
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import swarm_rows
from shoal.server.swarms import views as swarm_views

_ROUNDS = 12
_NUMBERS = {"peers", "round", "samples", "loss", "performance"}


class JoinPage(View):
    """Content of the page behind a join link."""

    swarm: str
    status: SwarmState
    command: str
    expires_at: Utc
    shown: bool
    """True if the swarm is public, so that the progress below is filled in."""
    peers: int = 0
    round: int | None = None
    samples: int | None = None
    loss: float | None = None
    performance: float | None = None
    rounds: list[RoundView] = []
    """The last rounds, newest first, without their members."""


def page(ctx: Context, token: str, link: str) -> JoinPage:
    """Return the content of the join page. `link` is the link to it, as the visitor reaches this server."""
    who = swarm_invitations.guest(ctx, token)
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, who.swarm_id)
        until = session.get_one(SwarmInvitation, who.invitation_id).expires_at
        numbers: dict[str, Any] = {}
        if swarm.spec["public"]:
            newest = session.scalar(select(func.max(SwarmRound.round)).where(SwarmRound.swarm_id == swarm.id)) or 0
            rounds = swarm_views.rounds(session, swarm.id, after=newest - _ROUNDS, limit=_ROUNDS)
            summary = swarm_views.summary(swarm, swarm_rows.present(session, swarm.id))
            numbers = summary.model_dump(include=_NUMBERS)
            numbers["samples"] = summary.total_samples or summary.samples
            numbers["rounds"] = [row.model_copy(update={"members": []}) for row in reversed(rounds)]
    return JoinPage(
        swarm=swarm.name,
        status=SwarmState(swarm.state),
        command=f"shoal swarm join {link}",
        expires_at=until,
        shown=bool(swarm.spec["public"]),
        **numbers,
    )
