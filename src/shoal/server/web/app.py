"""ASGI app of the console: its pages, and errors shown as pages. It shares the API's state, so both use one context."""

from __future__ import annotations

import copy
import functools
import logging
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DatabaseError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from shoal.core.errors import (
    Internal,
    InvalidSpec,
    KeyExpired,
    NotFound,
    NotSignedIn,
    ShoalError,
    StorageFull,
    UsageError,
)
from shoal.server.db import storage_error
from shoal.server.jobs import disk_use
from shoal.server.policy import check_app
from shoal.server.routers import add_routes
from shoal.server.web.cookies import clear_session
from shoal.server.web.render import JSON_TWIN, error_page, is_htmx, wants_json
from shoal.server.web.routes import (
    account,
    admin,
    datasets,
    home,
    invites,
    jobs,
    join,
    keys,
    leases,
    live,
    new_job,
    new_swarm,
    new_sweep,
    notices,
    packages,
    pool,
    preflights,
    recovery,
    runs,
    secrets,
    settings,
    sign_in_services,
    static,
    swarms,
    sweeps,
    uploads,
    workspaces,
)
from shoal.server.web.routes.job import about, code, compare, figures, jupyter, logs, overview

__all__ = ["JSON_TWIN", "build", "console_app"]

logger = logging.getLogger(__name__)


def console_app(state: State) -> ASGIApp:
    """Return the console for a server's state. The routes are built once per process and shared."""
    app = copy.copy(build())
    app.state = state
    return app


@functools.cache
def build() -> FastAPI:
    app = FastAPI(title="Shoal console", docs_url=None, redoc_url=None, openapi_url=None)
    for module in (
        static, packages, about, account, join, invites, home, workspaces, preflights, new_job, runs,
        jobs, logs, code, figures, overview, jupyter, compare, new_sweep, sweeps, new_swarm, swarms, uploads, datasets, secrets, leases,
        keys, notices, pool, live, settings, recovery, sign_in_services, admin,
    ):  # fmt: skip
        add_routes(app, module.router)
    add_routes(app, leases.everywhere, notices.everywhere)
    app.add_exception_handler(ShoalError, _shoal_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in (OSError, DatabaseError, Exception):
        app.add_exception_handler(kind, _bug)
    check_app(app)
    return app


def answer(request: Request, error: ShoalError) -> Response:
    """Return an error as JSON for programs and htmx, else as a page. If signed out, redirect to the sign-in page and back."""
    signed_out = isinstance(error, NotSignedIn | KeyExpired)
    if wants_json(request) or is_htmx(request):
        return JSONResponse(error.to_wire(), status_code=error.http_status, headers={"Vary": "Accept"})
    if signed_out and request.method == "GET":
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        why = "&expired=1" if isinstance(error, KeyExpired) else ""
        response: Response = RedirectResponse(f"/sign-in?next={quote(back, safe='')}{why}", 303)
        clear_session(response, request)
        return response
    return error_page(request, error)


def _shoal_error(request: Request, error: Any) -> Response:
    if isinstance(error, StorageFull):
        error = disk_use.explain(request.app.state.context, error)
    return answer(request, error)


def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    return answer(request, InvalidSpec(f"{first['loc'][-1]}: {first['msg']}."))


def _http_error(request: Request, error: Any) -> Response:
    if error.status_code == 404:
        return answer(request, NotFound("There is no such page."))
    problem = UsageError(str(error.detail))
    response = answer(request, problem)
    response.status_code = error.status_code
    return response


def _bug(request: Request, error: Exception) -> Response:
    if (meant := storage_error(error)) is not None:
        logger.error("%s %s: %s", request.method, request.url.path, error)
        return _shoal_error(request, meant)
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(request, Internal())
