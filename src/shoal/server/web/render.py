"""Rendering of data as an HTML page or as its JSON form. Everything is escaped; inline scripts are blocked (see `CSP`)."""

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
from shoal.core.install import install_command
from shoal.core.invite_links import with_fingerprint
from shoal.server.context import Context
from shoal.server.edge.public_address import address_of
from shoal.server.leases import service as leases
from shoal.server.leases.clock import NOTICE_S
from shoal.server.notices import rules as notices
from shoal.server.people import workspaces
from shoal.server.policy import Access, Principal
from shoal.server.web import format as formats
from shoal.server.web.cookies import keep_workspace, last_workspace
from shoal.server.web.files import highlight
from shoal.server.web.nav import Nav, job_path, swarm_path, sweep_path, workspace_path
from shoal.store.archives import types

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
    """Return a page for a signed-in user. `data` is also the content of its JSON form.

    `part` is the template that htmx gets instead, to replace a part of the page it already shows.
    """
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
        "unread": notices.unread(ctx, principal),
        "ending": leases.list_ending(ctx, principal, within_s=NOTICE_S),
    }
    response = html(template, values | frame, status=status)
    if access is not None:
        keep_workspace(response, request, access.workspace_id)
    return response


def refused(
    request: Request, ctx: Context, who: Access, template: str, data: Mapping[str, Any], error: ShoalError
) -> Response:
    """Return a refused form with everything the user typed. htmx and programs still have that, so they get the error only."""
    if is_htmx(request) or wants_json(request):
        raise error
    return page(request, ctx, who, template, {**data, "error": error.message}, status=error.http_status)


def bare_page(request: Request, template: str, data: Mapping[str, Any], *, status: int = 200) -> Response:
    """Return a page for visitors who are not signed in."""
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


def install_from(request: Request, *extras: str, quiet: bool = False) -> str:
    """Return the command line that installs Shoal from this server."""
    server = address_of(request.app.state.context, request)
    return install_command(*extras, server=server.url, fingerprint=server.ca_fingerprint, quiet=quiet)


def address_in(request: Request) -> str:
    """Return the URL for programs elsewhere; they check the private CA by the fingerprint in it."""
    server = address_of(request.app.state.context, request)
    return with_fingerprint(server.url, server.ca_fingerprint)


def guarded(disposition: str) -> dict[str, str]:
    """Return headers for content that users uploaded: it can be shown or saved, but scripts in it never run."""
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
    """Return the URL of a static file. It changes with the content, so that browsers can cache the file forever."""
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
        install_from=install_from,
        address_in=address_in,
        literal=repr,
        job_path=job_path,
        swarm_path=swarm_path,
        sweep_path=sweep_path,
        workspace_path=workspace_path,
        now=formats.now,
        highlight=highlight.lines,
        archive_suffixes=types.SUFFIXES,
        archive_types=types.SHOWN,
    )
    return env
