"""Swarms: the list, one swarm with its peers, and what one can do to it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.swarm_views import InvitationCreate, Kick
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.services import swarm_invitations, swarm_kick
from shoal.server.services import swarms as service
from shoal.server.web import swarms
from shoal.server.web.forms import Fields, days_of, done, go, parse
from shoal.server.web.nav import base_path, swarm_path
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/swarms")
_LISTED = 200
_DAY = 86_400


@router.get("")
def list_swarms(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Swarms of the workspace, newest first."""
    data = {"swarms": service.summaries(ctx, access, limit=_LISTED)}
    return page(request, ctx, access, "swarms.html", data, part="_swarms.html")


@router.get("/{swarm}")
def one(
    ctx: Ctx, request: Request, access: Viewer, swarm: str, part: Literal["head", "peers", "more"] = "head"
) -> Response:
    """How it is going, who takes part, and ways to join; as JSON, the charts' rounds too."""
    view = service.get(ctx, access, swarm)
    data = swarms.page_data(ctx, access, view)
    if wants_json(request):
        data["rounds"] = swarms.rounds(ctx, view)
    return page(request, ctx, access, "swarm.html", data, part=f"_swarm_{part}.html")


@router.post("/{swarm}/invite")
def invite(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Make an invitation and show its command, this once."""
    days, most = form.get("days", ""), form.get("max_peers", "").strip()
    asked = {"expires_in_s": days_of(days) * _DAY} if days.isdecimal() else {}
    body = parse(InvitationCreate, name=form.get("name", "").strip() or "invitation", max_peers=most or None, **asked)
    made = swarm_invitations.create(ctx, access, swarm, body)
    data = {"invitation": made, "link": swarms.join_link(request, made.token), "swarm": service.get(ctx, access, swarm)}
    return page(request, ctx, access, "swarm_invited.html", data, part="_swarm_invited.html", status=201)


@router.post("/{swarm}/revoke")
def revoke(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Nobody joins by this invitation any more."""
    swarm_invitations.revoke(ctx, access, swarm, form.get("invitation", ""))
    return done(request, "Invitation revoked.", f"{base_path(access)}/swarms/{swarm}")


@router.post("/{swarm}/kick")
def kick(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Send a peer away for good."""
    gone = swarm_kick.kick(ctx, access, swarm, form.get("peer", ""), Kick(revoke=form.get("revoke") == "1"))
    return done(request, f"{gone.name} was sent away.", f"{base_path(access)}/swarms/{swarm}")


@router.post("/{swarm}/stop")
def stop(ctx: Ctx, request: Request, access: Worker, swarm: str) -> Response:
    """Keep a last checkpoint, and tell all peers to leave."""
    view = service.stop(ctx, access, swarm)
    return done(request, f"Stopping {view.name}.", swarm_path(base_path(access), view.name, view.id))


@router.post("/{swarm}/resume")
def resume(ctx: Ctx, request: Request, access: Worker, swarm: str) -> Response:
    """Go on from the newest checkpoint, with whoever joins from now on."""
    view = service.resume(ctx, access, swarm)
    return done(request, f"{view.name} goes on.", swarm_path(base_path(access), view.name, view.id))


@router.post("/{swarm}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Remove a swarm that was stopped; its checkpoints stay."""
    service.delete(ctx, access, swarm)
    listing = f"{base_path(access)}/swarms"
    return go(request, listing) if form.get("then") == "list" else done(request, "Swarm deleted.", listing)
