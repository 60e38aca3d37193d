"""The new-swarm page: code, terms and the equivalent command; then the line with which the first peer joins."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.errors import ShoalError
from shoal.server.context import Ctx
from shoal.server.policy import Worker
from shoal.server.swarms import service
from shoal.server.web import swarms
from shoal.server.web.drafts import new_swarm
from shoal.server.web.drafts.new_swarm import SwarmDraft, from_form, to_swarm
from shoal.server.web.forms import Fields
from shoal.server.web.render import is_htmx, page, refused

router = APIRouter(prefix="/w/{workspace}/swarms/new")


@router.get("")
def form(ctx: Ctx, request: Request, access: Worker) -> Response:
    """Show the empty form."""
    return page(request, ctx, access, "new_swarm.html", new_swarm.form_data(ctx, access, SwarmDraft()))


@router.post("")
def submit(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Create the swarm and show its first invitation once. If it is refused, the form keeps what was typed."""
    draft = from_form(fields)
    try:
        made = service.create(ctx, access, to_swarm(draft))
    except ShoalError as error:
        return refused(request, ctx, access, "new_swarm.html", new_swarm.form_data(ctx, access, draft), error)
    link = swarms.join_link(ctx, request, made.invitation.token)
    data = {"invitation": made.invitation, "link": link, "swarm": made.swarm}
    answer = page(request, ctx, access, "swarm_created.html", data, part="_swarm_created.html", status=201)
    if is_htmx(request):
        answer.headers.update({"HX-Retarget": ".cols.draft", "HX-Reswap": "outerHTML"})
    return answer


@router.post("/preview")
def preview(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Show the command for the current form."""
    name = "_new_job_preview.html"
    return page(request, ctx, access, name, new_swarm.preview(ctx, access, from_form(fields)), part=name)


@router.post("/restore")
def restore(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Show the form with what was typed earlier, for a page that was left before it was submitted."""
    data = new_swarm.form_data(ctx, access, from_form(fields))
    return page(request, ctx, access, "new_swarm.html", data, part="_new_swarm_form.html")
