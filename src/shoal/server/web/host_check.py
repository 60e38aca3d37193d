"""Host and origin check of all requests; `/api` then goes to the API, everything else to the console.

A browser lets any web page send requests to this server. A request that changes something must therefore come from the
console's own pages, or from a program that has a key.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.core.errors import Forbidden
from shoal.server.context import Context
from shoal.server.web.app import JSON_TWIN, console_app
from shoal.server.web.cookies import session_token

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class HostCheck:
    """ASGI middleware that checks host and origin and selects the API or the console."""

    def __init__(self, app: ASGIApp):
        self.api = app
        self._console: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        context: Context = scope["app"].state.context
        problem = refuse_host(context, Headers(scope=scope)) or refuse_origin(HTTPConnection(scope), scope["method"])
        if problem is not None:
            await JSONResponse(problem.to_wire(), 403)(scope, receive, send)
            return
        if scope["path"].startswith("/api/"):
            await self.api(scope, receive, send)
            return
        if self._console is None:
            self._console = console_app(scope["app"].state)
        await self._console(_with_twin(scope), receive, send)


def refuse_host(context: Context, headers: Headers) -> Forbidden | None:
    """Return an error if the Host header is not a name of this server (protection against DNS rebinding), else None."""
    name = hostname(headers.get("host", ""))
    settings = context.settings
    if context.private:
        is_ours = name in _LOOPBACK or name == settings.host
    else:
        named = {part.strip().lower() for part in settings.hosts.split(",") if part.strip()}
        is_ours = not named or name in named | _LOOPBACK or _is_address(name)
    return None if is_ours else Forbidden(f"This server is not '{name[:200]}'.")


def refuse_origin(connection: HTTPConnection, method: str) -> Forbidden | None:
    """Return an error if a changing request comes from another site's page, else None.

    Programs other than browsers send neither Origin nor Sec-Fetch-Site.
    """
    if method in _SAFE:
        return None
    headers = connection.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        is_ours = urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    elif site is not None:
        is_ours = site in ("same-origin", "none")
    else:
        is_ours = "authorization" in headers or not session_token(connection)
    return None if is_ours else Forbidden("This request came from another site's page.")


def _with_twin(scope: Scope) -> Scope:
    """Return the scope for the JSON form of a page: `/machines.json` is `/machines` as JSON."""
    path: str = scope["path"]
    if not path.endswith(".json") or path.startswith("/static/"):
        return scope
    short = path.removesuffix(".json")
    short = "/" if short in ("/index", "") else short
    return {**scope, "path": short, "raw_path": short.encode(), JSON_TWIN: True}


def hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
