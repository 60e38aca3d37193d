"""Swarms: the list, one swarm with its peers, and the actions on it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.swarm_views import InvitationCreate, Kick
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import kick as swarm_kick
from shoal.server.swarms import service
from shoal.server.web import swarms
from shoal.server.web.forms import Fields, days_of, done, go, parse
from shoal.server.web.nav import base_path, swarm_path
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/swarms")
_LISTED = 200
_DAY = 86_400


@router.get("")
def list_swarms(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """List the swarms of the workspace, newest first."""
    data = {"swarms": service.summaries(ctx, access, limit=_LISTED)}
    return page(request, ctx, access, "swarms.html", data, part="_swarms.html")


@router.get("/{swarm}")
def one(
    ctx: Ctx, request: Request, access: Viewer, swarm: str, part: Literal["head", "peers", "more"] = "head"
) -> Response:
    """Show the progress of a swarm, its peers and how to join; as JSON, also the rounds for the charts."""
    view = service.get(ctx, access, swarm)
    data = swarms.page_data(ctx, access, view)
    if wants_json(request):
        data["rounds"] = swarms.rounds(ctx, view)
    return page(request, ctx, access, "swarm.html", data, part=f"_swarm_{part}.html")


@router.post("/{swarm}/invite")
def invite(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Create an invitation and show its command once."""
    days, most = form.get("days", ""), form.get("max_peers", "").strip()
    asked = {"expires_in_s": days_of(days) * _DAY} if days.isdecimal() else {}
    body = parse(InvitationCreate, name=form.get("name", "").strip() or "invitation", max_peers=most or None, **asked)
    made = swarm_invitations.create(ctx, access, swarm, body)
    data = {
        "invitation": made,
        "link": swarms.join_link(ctx, request, made.token),
        "swarm": service.get(ctx, access, swarm),
    }
    return page(request, ctx, access, "swarm_invited.html", data, part="_swarm_invited.html", status=201)


@router.post("/{swarm}/revoke")
def revoke(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Revoke an invitation: no further peer can join with it."""
    swarm_invitations.revoke(ctx, access, swarm, form.get("invitation", ""))
    return done(request, "Invitation revoked.", f"{base_path(access)}/swarms/{swarm}")


@router.post("/{swarm}/kick")
def kick(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Remove a peer permanently."""
    gone = swarm_kick.kick(ctx, access, swarm, form.get("peer", ""), Kick(revoke=form.get("revoke") == "1"))
    return done(request, f"{gone.name} was removed.", f"{base_path(access)}/swarms/{swarm}")


@router.post("/{swarm}/stop")
def stop(ctx: Ctx, request: Request, access: Worker, swarm: str) -> Response:
    """Stop a swarm: save a last checkpoint and tell all peers to leave."""
    view = service.stop(ctx, access, swarm)
    return done(request, f"Stopping {view.name}.", swarm_path(base_path(access), view.name, view.id))


@router.post("/{swarm}/resume")
def resume(ctx: Ctx, request: Request, access: Worker, swarm: str) -> Response:
    """Resume a swarm from its newest checkpoint; peers have to join again."""
    view = service.resume(ctx, access, swarm)
    return done(request, f"{view.name} is running again.", swarm_path(base_path(access), view.name, view.id))


@router.post("/{swarm}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, swarm: str, form: Fields) -> Response:
    """Delete a stopped swarm; its checkpoints stay."""
    service.delete(ctx, access, swarm)
    listing = f"{base_path(access)}/swarms"
    return go(request, listing) if form.get("then") == "list" else done(request, "Swarm deleted.", listing)
