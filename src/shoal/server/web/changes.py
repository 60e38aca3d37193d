"""One stream per person of what changes in their jobs, as server-sent events; what keeps list pages up to date.

An event's id is the server's clock. Whoever comes back with the last one seen is told what has ended since.
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
from shoal.core.schema import View
from shoal.core.swarm_views import SwarmState
from shoal.core.sweeps import SweepState
from shoal.server.context import Context
from shoal.server.models.people import Member
from shoal.server.models.swarm import Swarm
from shoal.server.models.sweeps import Sweep
from shoal.server.policy import Principal
from shoal.server.web import overview
from shoal.server.web.overview import PlacedJob

PING_S = 15.0
GAP_S = 0.5
"""Between two looks: a job may change many times a second, and nobody reads that fast."""
_REMEMBERED = timedelta(hours=12)


class Changes(View):
    jobs: list[PlacedJob]
    cursor: int
    """Give it back as `after` to be told what ended since."""


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
"""Event, prefix of ids, table, what is told."""


def now(ctx: Context, principal: Principal) -> Changes:
    """What is active now: the stream's beginning."""
    cursor = _clock()
    return Changes(jobs=overview.active(ctx, principal), cursor=cursor)


async def stream(
    ctx: Context, principal: Principal, after: int | None, still_signed_in: Callable[[], object]
) -> AsyncIterator[str]:
    """`hello` first; `job`, `sweep` and `swarm` for each that changed; `gone` for one that was deleted; `ping` when all is quiet."""
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
            for kind, told in await run_in_threadpool(_others, ctx, principal, changed):
                yield _event(kind, told, cursor)
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
    oldest = datetime.now(UTC) - _REMEMBERED
    since = datetime.fromtimestamp(min(max(after / 1e6, oldest.timestamp()), 1e11), UTC)
    return overview.ended_since(ctx, principal, since)


def _others(ctx: Context, principal: Principal, changed: set[str]) -> list[tuple[str, View]]:
    """Sweeps and swarms among them that one may see."""
    told: list[tuple[str, View]] = []
    for kind, prefix, table, view in _OTHERS:
        wanted = [ident for ident in changed if is_id(ident, prefix)][:1000]
        if not wanted:
            continue
        mine = select(table).join(Member, Member.workspace_id == table.workspace_id)
        with ctx.db.read() as session:
            found = session.scalars(mine.where(Member.user_id == principal.user_id, table.id.in_(wanted)))
            told += [(kind, view(id=one.id, name=one.name, status=one.state)) for one in found]
    return told


def _clock() -> int:
    return int(time.time() * 1e6)


def _event(kind: str, told: View, cursor: int) -> str:
    return f"event: {kind}\nid: {cursor}\ndata: {told.model_dump_json()}\n\n"
