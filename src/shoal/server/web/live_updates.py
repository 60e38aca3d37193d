"""Server-sent events about changes of a user's jobs, sweeps and swarms: they keep the console's lists up to date.

The id of an event is the server's time. A browser that reconnects with the last id gets the jobs that have ended since.

Why this is safe: each stream is one coroutine on the event loop and alone owns its `known`, so nothing is shared between
streams. Changes come from any thread through a `Watcher`, which collects ids under its own lock and wakes the coroutine.
The watcher is registered before the first read (`now`), so a change in between is reported twice rather than lost. Events
carry what is read from the database after the change. Database reads run in the thread pool and never block the event loop.
A lost connection or a restart of the server loses nothing: the browser reconnects, and `hello` and the ended jobs follow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select

from shoal.core.errors import AuthError
from shoal.core.ids import is_id
from shoal.core.schema import View, utcnow
from shoal.core.swarm_views import SwarmState
from shoal.core.sweeps import SweepState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.swarm import Swarm
from shoal.server.models.sweeps import Sweep
from shoal.server.models.workspaces import Member
from shoal.server.policy import Principal
from shoal.server.web import overview
from shoal.server.web.overview import PlacedJob

PING_S = 15.0
GAP_S = 0.5
"""Pause in seconds between two reads: a job may change many times a second, and no one reads that fast."""
_REMEMBERED = timedelta(hours=12)


class Changes(View):
    """Active jobs of a user, and the cursor from which to follow their changes."""

    jobs: list[PlacedJob]
    cursor: int
    """Pass it as `after` to get the jobs that have ended since."""


class ChangedSweep(View):
    id: str
    name: str
    status: SweepState


class ChangedSwarm(View):
    id: str
    name: str
    status: SwarmState


_OTHERS: tuple[tuple[str, str, Any, Any], ...] = (
    ("sweep", "swp", Sweep, ChangedSweep),
    ("swarm", "swm", Swarm, ChangedSwarm),
)
"""Event name, prefix of ids, table and view of the other kinds of things that are reported."""


def now(ctx: Context, principal: Principal) -> Changes:
    """Return the jobs that are active now, with the cursor at which a stream begins."""
    cursor = _clock()
    return Changes(jobs=overview.active(ctx, principal), cursor=cursor)


async def stream(
    ctx: Context, principal: Principal, after: int | None, still_signed_in: Callable[[], object]
) -> AsyncIterator[str]:
    """Yield the events of a stream until the session or the server ends.

    `hello` comes first; `job`, `sweep` and `swarm` report a change, `gone` a deleted job, and `ping` that nothing changed.
    """
    async with ctx.live.watching() as watcher:
        start = await run_in_threadpool(now, ctx, principal)
        known = {placed.job.id: placed for placed in start.jobs}
        yield f"retry: 1000\nevent: hello\nid: {start.cursor}\ndata: {{}}\n\n"
        for placed in await run_in_threadpool(_ended_since, ctx, principal, after):
            known[placed.job.id] = placed
            yield _event("job", placed, start.cursor)
        checked = time.monotonic()
        while not ctx.live.closing:
            changed = await watcher.changes(PING_S)
            if time.monotonic() - checked >= PING_S:
                checked = time.monotonic()
                try:
                    await run_in_threadpool(still_signed_in)
                except AuthError:
                    return
            cursor = _clock()
            found = await run_in_threadpool(overview.some, ctx, principal, changed) if changed else {}
            for kind, view in await run_in_threadpool(_others, ctx, principal, changed):
                yield _event(kind, view, cursor)
            for job_id in changed & known.keys() - found.keys():
                del known[job_id]
                yield f'event: gone\nid: {cursor}\ndata: {{"id":"{job_id}"}}\n\n'
            for job_id, placed in found.items():
                if known.get(job_id) != placed:
                    known[job_id] = placed
                    yield _event("job", placed, cursor)
            if not changed:
                yield f"event: ping\nid: {cursor}\ndata: {{}}\n\n"
            await asyncio.sleep(GAP_S)


def _ended_since(ctx: Context, principal: Principal, after: int | None) -> list[PlacedJob]:
    if after is None:
        return []
    oldest = utcnow() - _REMEMBERED
    since = datetime.fromtimestamp(min(max(after / 1e6, oldest.timestamp()), 1e11), UTC)
    return overview.ended_since(ctx, principal, since)


def _others(ctx: Context, principal: Principal, changed: set[str]) -> list[tuple[str, View]]:
    """Return the changed sweeps and swarms that the user may see, each with its event name."""
    views: list[tuple[str, View]] = []
    for kind, prefix, table, view in _OTHERS:
        mine = select(table).join(Member, Member.workspace_id == table.workspace_id)
        for wanted in in_parts(ident for ident in changed if is_id(ident, prefix)):
            with ctx.db.read() as session:
                found = session.scalars(mine.where(Member.user_id == principal.user_id, table.id.in_(wanted)))
                views += [(kind, view(id=one.id, name=one.name, status=one.state)) for one in found]
    return views


def _clock() -> int:
    return int(utcnow().timestamp() * 1e6)


def _event(kind: str, view: View, cursor: int) -> str:
    return f"event: {kind}\nid: {cursor}\ndata: {view.model_dump_json()}\n\n"
