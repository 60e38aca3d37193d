"""Is anybody there."""

from __future__ import annotations

from typing import Any

from shoal import __version__
from shoal.core.loops import Problem
from shoal.server.context import Context, Ctx
from shoal.server.policy import Anyone
from shoal.server.routers import api_router

router = api_router(tags=["health"])


@router.get("/health", dependencies=[Anyone])
async def health(ctx: Ctx) -> dict[str, Any]:
    """Answers as soon as the server is ready, and however busy it is.

    `status` is always "ok": the server lives. `health` is "ok" or "degraded"; then `problems` names each part that is not
    well: a background loop that fails, is late or dead, the database, the disk. What exactly went wrong is told by a private
    server only; on a shared one it is in the log and on the admin's page. `instance` identifies its data directory.
    """
    problems = [_told(ctx, problem) for problem in ctx.loops.problems()]
    health = "degraded" if problems else "ok"
    known = {"version": __version__, "private": ctx.private, "instance": ctx.instance}
    return {"status": "ok", **known, "health": health, "problems": problems}


def _told(ctx: Context, problem: Problem) -> dict[str, Any]:
    error = problem.error if ctx.private else None
    return {"name": problem.name, "state": problem.state, "since_s": round(problem.since_s, 1), "error": error}
