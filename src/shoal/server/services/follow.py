"""Following a job live, as server-sent events. The only asynchronous service: it mostly waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.jobs import JobSummary
from shoal.core.states import NodeState
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import Access
from shoal.server.services import jobs, metric_reads, streams, views

_PING_S = 15.0
_DRAIN_S = 3.0


async def follow(
    ctx: Context, access: Access, job: str, *, after: int, node: int | None, rank: int | None, since: float | None
) -> AsyncIterator[str]:
    """Finds the job first, so that an unknown one is a plain 404 and not a broken stream."""
    found = await run_in_threadpool(jobs.get, ctx, access, job)
    return _events(ctx, access, found.id, after, node, rank, since)


async def _events(
    ctx: Context, access: Access, job_id: str, cursor: int, node: int | None, rank: int | None, since: float | None
) -> AsyncIterator[str]:
    last: JobSummary | None = None
    drawn: int | None = None
    async with ctx.live.following(job_id) as changed:
        while not ctx.live.closing:
            changed.clear()
            summary = await run_in_threadpool(_summary, ctx, job_id)
            page = await run_in_threadpool(
                streams.read_logs, ctx, access, job_id, after=cursor, node=node, rank=rank, since=since
            )
            cursor = page.cursor
            if page.lines:
                yield _event("log", page, cursor)
            if summary is None:
                return
            if summary != last:
                last = summary
                yield _event("job", summary, cursor)
            at = await run_in_threadpool(_metrics_cursor, ctx, job_id)
            if at and at != drawn:
                drawn = at
                yield f'event: metrics\nid: {cursor}\ndata: {{"cursor":{at}}}\n\n'
            if page.more:
                continue
            if summary.status.is_terminal and await _drained(ctx, job_id, changed):
                yield _event("end", summary, cursor)
                return
            try:
                await asyncio.wait_for(changed.wait(), _PING_S)
            except TimeoutError:
                yield "event: ping\ndata: {}\n\n"


def _summary(ctx: Context, job_id: str) -> JobSummary | None:
    with ctx.db.read() as session:
        job = session.get(Job, job_id)
        return views.job_summary(session, job) if job is not None else None


def _metrics_cursor(ctx: Context, job_id: str) -> int:
    with ctx.db.read() as session:
        return metric_reads.cursor(session, job_id)


async def _drained(ctx: Context, job_id: str, changed: asyncio.Event) -> bool:
    """True once no agent has lines left to send, as far as can be known."""
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


def _event(kind: str, body: BaseModel, cursor: int) -> str:
    return f"event: {kind}\nid: {cursor}\ndata: {body.model_dump_json()}\n\n"
