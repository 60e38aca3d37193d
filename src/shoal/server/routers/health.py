"""Health check of the server."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request, Response

from shoal import __version__
from shoal.core.background_loops import Problem
from shoal.core.errors import NotFound
from shoal.core.server_address import ServerAddress
from shoal.server.artifacts import store_probe
from shoal.server.context import Context, Ctx
from shoal.server.edge.public_address import address_of
from shoal.server.policy import Anyone, Reader
from shoal.server.routers import api_router

router = api_router(tags=["health"])
_PARTS = {"database": "database", "disk": "disk", store_probe.NAME: "store", "system clock": "clock"}
"""Name of a check → part of the server. All others are loops."""
_NEEDED = frozenset({"database", store_probe.NAME})
"""Parts without which no request can be served."""


@router.get("/health", dependencies=[Anyone])
async def health(ctx: Ctx) -> dict[str, Any]:
    """Report the health of the server. Answers as soon as the server is ready, even under heavy load.

    `status` is always "ok": the server is running. `health` is "ok" or "degraded". `parts` has the state of the database, the
    disk, the store, the clock and the background loops. If one is not "ok", `problems` lists what: a loop that fails, is late
    or has ended, the database, the disk, the store. Only a private server includes the error text; on a shared server it is
    in the log and on the admin page. `instance` identifies the data directory. `clock.now`: the server's Unix time.
    `clock.jumped_s`: seconds by which the system
    clock was changed while jobs or leases run; these count elapsed time.
    """
    problems = ctx.loops.problems()
    health = "degraded" if problems else "ok"
    known = {"version": __version__, "private": ctx.private, "instance": ctx.instance}
    clock = {"now": time.time(), "jumped_s": round(ctx.clock.gap_s, 1)}
    views = [_problem_view(ctx, problem) for problem in problems]
    return {"status": "ok", **known, "health": health, "parts": _parts(problems), "problems": views, "clock": clock}


@router.get("/health/live", dependencies=[Anyone])
async def live(ctx: Ctx, response: Response) -> dict[str, Any]:
    """Report whether the server should be left running, for a liveness probe.

    503 with `problems` if a part has ended that only a restart brings back: a background loop, the database's writer, a
    listener. A sick disk or a store that is away is no reason to restart.
    """
    return _probe(response, [problem for problem in ctx.loops.problems() if problem.state == "dead"])


@router.get("/health/ready", dependencies=[Anyone])
async def ready(ctx: Ctx, response: Response) -> dict[str, Any]:
    """Report whether the server can serve requests now, for a readiness probe or a load balancer.

    503 with `problems` if the database or the store does not work, or a background loop has ended, and while the server shuts
    down. On a full disk it remains ready: reading, stopping and deleting work.
    """
    found = [problem for problem in ctx.loops.problems() if problem.state == "dead" or problem.name in _NEEDED]
    if ctx.live.closing:
        found.append(Problem("server", "closing", 0.0))
    return _probe(response, found)


@router.get("/ca", dependencies=[Anyone])
def ca(ctx: Ctx) -> Response:
    """Return the certificate (PEM) of the server's private CA. Check its fingerprint before you trust it: an admin finds it in
    `shoal server status`. 404 if the server's certificate was signed by another CA."""
    if ctx.tls is None or ctx.tls.ca is None:
        raise NotFound("This server has no CA of its own.")
    return Response(ctx.tls.ca, media_type="application/x-pem-file")


@router.get("/address")
def address(ctx: Ctx, request: Request, _: Reader) -> ServerAddress:
    """Return the URL at which other machines reach this server, and the fingerprint of its private CA if it has one. Links for
    others begin with this URL."""
    return address_of(ctx, request)


def _probe(response: Response, problems: list[Problem]) -> dict[str, Any]:
    if problems:
        response.status_code = 503
    return {
        "status": "failing" if problems else "ok",
        "problems": [{"name": p.name, "state": p.state} for p in problems],
    }


def _parts(problems: list[Problem]) -> dict[str, str]:
    """Return the state of each part: "ok", or that of its first problem."""
    parts = dict.fromkeys([*_PARTS.values(), "loops"], "ok")
    for problem in reversed(problems):
        parts[_PARTS.get(problem.name, "loops")] = problem.state
    return parts


def _problem_view(ctx: Context, problem: Problem) -> dict[str, Any]:
    error = problem.error if ctx.private else None
    return {"name": problem.name, "state": problem.state, "since_s": round(problem.since_s, 1), "error": error}
