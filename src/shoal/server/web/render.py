"""From data to a page or to its JSON twin. Everything is escaped; nothing inline runs (see `CSP`)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shoal import __version__
from shoal.core.errors import ShoalError
from shoal.server.context import Context
from shoal.server.policy import Access, Principal
from shoal.server.services import leases, workspaces
from shoal.server.services.lease_clock import NOTICE_S
from shoal.server.web import format as formats
from shoal.server.web import highlight
from shoal.server.web.cookies import keep_workspace, last_workspace
from shoal.server.web.nav import Nav, job_path, swarm_path, sweep_path, workspace_path

STATIC = Path(__file__).parent / "static"
JSON_TWIN = "shoal.json_twin"
CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Accept, HX-Request, Cookie",
}


def page(
    request: Request,
    ctx: Context,
    who: Access | Principal,
    template: str,
    data: Mapping[str, Any],
    *,
    part: str | None = None,
    status: int = 200,
) -> Response:
    """`data` is what the JSON twin shows; `part` is the template for htmx, which swaps it into a page already there."""
    if wants_json(request):
        return _twin(data, status)
    access = who if isinstance(who, Access) else None
    principal = who.principal if isinstance(who, Access) else who
    values: dict[str, Any] = {**data, "request": request, "access": access, "me": principal}
    if part is not None and is_htmx(request):
        return html(part, values, status=status)
    mine = workspaces.list_workspaces(ctx, principal)
    frame = {
        "nav": Nav.of(request.url.path, access, mine, last=last_workspace(request), admin=principal.is_admin),
        "ending": leases.list_ending(ctx, principal, within_s=NOTICE_S),
    }
    response = html(template, values | frame, status=status)
    if access is not None:
        keep_workspace(response, request, access.workspace_id)
    return response


def refused(
    request: Request, ctx: Context, who: Access, template: str, data: Mapping[str, Any], error: ShoalError
) -> Response:
    """A form that was refused, with all that was typed; whoever still has that gets only the error."""
    if is_htmx(request) or wants_json(request):
        raise error
    return page(request, ctx, who, template, {**data, "error": error.message}, status=error.http_status)


def bare_page(request: Request, template: str, data: Mapping[str, Any], *, status: int = 200) -> Response:
    """For people who are not signed in."""
    if wants_json(request):
        return _twin(data, status)
    return html(template, {**data, "request": request}, status=status)


def _twin(data: Mapping[str, Any], status: int) -> Response:
    text = to_json(dict(data), by_alias=True, inf_nan_mode="null")
    return Response(text, status, headers={"Vary": HEADERS["Vary"]}, media_type="application/json")


def error_page(request: Request, error: ShoalError) -> Response:
    return html("error.html", {"error": error, "request": request}, status=error.http_status)


def html(template: str, values: Mapping[str, Any], *, status: int = 200) -> Response:
    return HTMLResponse(environment().get_template(template).render(values), status, headers=dict(HEADERS))


def guarded(disposition: str) -> dict[str, str]:
    """What people uploaded is shown or saved, never run, even if it is opened by itself."""
    return {
        "Content-Disposition": disposition,
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, max-age=3600",
    }


def wants_json(request: Request) -> bool:
    if request.scope.get(JSON_TWIN):
        return True
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def is_htmx(request: Request) -> bool:
    return "hx-request" in request.headers and "hx-history-restore-request" not in request.headers


def asset(path: str) -> str:
    """A static file's URL, which changes with its content, so that browsers may keep it for ever."""
    return f"/static/{path}?v={asset_version(path)}"


@functools.cache
def asset_version(path: str) -> str:
    try:
        return hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:10]
    except OSError:
        return "0"


@functools.cache
def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("shoal.server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters.update(
        ago=formats.ago,
        clock=formats.clock,
        compact=formats.compact,
        duration=formats.duration,
        filesize=formats.filesize,
        money=formats.money,
        number=formats.number,
        iso=formats.iso,
        plural=formats.plural,
    )
    env.globals.update(
        asset=asset,
        version=__version__,
        job_path=job_path,
        swarm_path=swarm_path,
        sweep_path=sweep_path,
        workspace_path=workspace_path,
        now=formats.now,
        highlight=highlight.lines,
    )
    return env
