"""The ASGI app: routers, console, error bodies, request limits. It does not start if a route has no policy."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DatabaseError
from starlette.exceptions import HTTPException

from shoal import __version__
from shoal.core.errors import Internal, InvalidSpec, NotFound, ShoalError, StorageFull, UsageError
from shoal.server import write_patience
from shoal.server.actor import ActorOfRequest
from shoal.server.body_limits import BodyLimit
from shoal.server.context import Context
from shoal.server.db import storage_error
from shoal.server.jobs import disk_use
from shoal.server.policy import check_app
from shoal.server.routers import (
    PREFIX,
    add_routes,
    admin,
    agent,
    audit,
    auth,
    billing,
    bugs,
    checkpoints,
    datasets,
    engines,
    file_schemas,
    git,
    health,
    jobs,
    keys,
    leases,
    metrics,
    notices,
    pool,
    preflights,
    queue,
    runs,
    secrets,
    snapshots,
    sources,
    store,
    swarm_peers,
    swarms,
    sweeps,
    upkeep,
    workspaces,
)
from shoal.server.web.app import build as build_console
from shoal.server.web.host_check import HostCheck

__all__ = ["PREFIX", "create_app"]

logger = logging.getLogger(__name__)


def create_app(context: Context) -> FastAPI:
    app = FastAPI(title="Shoal", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context = context
    for module in (
        health,
        auth,
        keys,
        workspaces,
        secrets,
        git,
        sources,
        store,
        datasets,
        checkpoints,
        notices,
        jobs,
        preflights,
        queue,
        sweeps,
        swarms,
        swarm_peers,
        billing,
        metrics,
        bugs,
        runs,
        leases,
        snapshots,
        pool,
        upkeep,
        admin,
        audit,
        engines,
        agent,
        file_schemas,
    ):
        add_routes(app, module.router)
    add_routes(app, runs.everywhere, pool.machines, notices.everywhere)
    app.add_exception_handler(ShoalError, _shoal_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(UnicodeEncodeError, _not_unicode)
    for kind in (OSError, DatabaseError, Exception):
        app.add_exception_handler(kind, _bug)
    app.add_middleware(HostCheck)
    app.add_middleware(BodyLimit)
    app.add_middleware(ActorOfRequest)
    check_app(app)
    build_console()  # now, so that a page without a policy prevents the start too
    return app


def _answer(error: ShoalError) -> JSONResponse:
    waits = {503: "1", 507: "5"}.get(error.http_status)
    headers = {"Retry-After": waits} if waits else None
    return JSONResponse(error.to_wire(), status_code=error.http_status, headers=headers)


def _shoal_error(request: Request, error: Any) -> JSONResponse:
    context: Context = request.app.state.context
    if isinstance(error, StorageFull):
        error = disk_use.explain(context, error)
    # A failed flush may have written the transaction or not; any other failed write was undone.
    if error.http_status in (503, 507) and write_patience.of_request() is not None and not context.db.distrusted:
        error.details["unchanged"] = True
    return _answer(error)


def _invalid(_: Request, error: Any) -> JSONResponse:
    """Answer with the first invalid field in one line, and all of them in `details`.

    Values are left out: they may be secret.
    """
    problems = [{"field": ".".join(str(p) for p in e["loc"][1:]), "problem": e["msg"]} for e in error.errors()]
    first = problems[0]
    text = first["problem"].removeprefix("Value error, ")
    named = f"{first['field']}: {text}" if first["field"] else text
    return _answer(InvalidSpec(f"{named}.".replace("..", "."), details={"problems": problems}))


def _not_unicode(_: Request, error: Any) -> JSONResponse:
    return _answer(InvalidSpec("The request contains text that is not valid Unicode."))


def _http_error(_: Request, error: Any) -> JSONResponse:
    if error.status_code == 404:
        return _answer(NotFound("There is no such route."))
    return JSONResponse(UsageError(str(error.detail)).to_wire(), status_code=error.status_code)


def _bug(request: Request, error: Exception) -> JSONResponse:
    """Answer an unexpected error: Internal, unless the disk or database failed, which is not a bug and may be retried."""
    if (meant := storage_error(error)) is not None:
        logger.error("%s %s: %s", request.method, request.url.path, error)
        return _shoal_error(request, meant)
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(Internal())
