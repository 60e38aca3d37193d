"""Live updates of a job as server-sent events. The only asynchronous service, because it mostly waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.jobs import JobSummary
from shoal.core.states import NodeState
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.jobs.feeds import Position
from shoal.server.jobs.feeds import event as _event
from shoal.server.models.jobs import Attempt, Node
from shoal.server.policy import Access

_PING_S = 15.0
_DRAIN_S = 3.0


async def follow(
    ctx: Context, access: Access, job: str, *, after: int, node: int | None, rank: int | None, since: float | None
) -> AsyncIterator[str]:
    """Return the stream of a job's events. The job is looked up first, so that an unknown one gives a plain 404."""
    found = await run_in_threadpool(jobs.get, ctx, access, job)
    return _events(ctx, access, found.id, after, node, rank, since)


async def _events(
    ctx: Context, access: Access, job_id: str, cursor: int, node: int | None, rank: int | None, since: float | None
) -> AsyncIterator[str]:
    last: JobSummary | None = None
    drawn: int | None = None
    async with AsyncExitStack() as stack:
        stack.callback(ctx.feeds.forget, ctx, job_id)
        changed = await stack.enter_async_context(ctx.live.following(job_id))
        while not ctx.live.closing:
            changed.clear()
            news = await ctx.feeds.read(ctx, access, job_id, Position(cursor, node, rank, since))
            summary, cursor = news.summary, news.cursor
            if news.log:
                yield news.log
            if summary is None:
                return
            if summary != last:
                last = summary
                yield _event("job", summary, cursor)
            if news.metrics_at and news.metrics_at != drawn:
                drawn = news.metrics_at
                yield f'event: metrics\nid: {cursor}\ndata: {{"cursor":{drawn}}}\n\n'
            if news.more:
                continue
            if summary.status.is_terminal and await _drained(ctx, job_id, changed):
                yield _event("end", summary, cursor)
                return
            try:
                await asyncio.wait_for(changed.wait(), _PING_S)
            except TimeoutError:
                yield "event: ping\ndata: {}\n\n"


async def _drained(ctx: Context, job_id: str, changed: asyncio.Event) -> bool:
    """Check whether all agents have sent their last lines, or none has sent anything for `_DRAIN_S`."""
    if not changed.is_set() and await run_in_threadpool(_all_final, ctx, job_id):
        return not changed.is_set()
    try:
        await asyncio.wait_for(changed.wait(), _DRAIN_S)
    except TimeoutError:
        return True
    return False


def _all_final(ctx: Context, job_id: str) -> bool:
    def open_nodes(session: Session) -> list[Node]:
        return list(
            session.scalars(
                select(Node)
                .join(Attempt, Attempt.id == Node.attempt_id)
                .where(Attempt.job_id == job_id, Node.final.is_(False), Node.state == NodeState.EXITED.value)
            )
        )

    with ctx.db.read() as session:
        return not open_nodes(session)
