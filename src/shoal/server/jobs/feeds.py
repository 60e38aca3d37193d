"""News of a job, read and encoded once for all its followers that are at the same place.

Why nobody misses a line: a follower clears its event, takes the job's revision and then asks for news. The revision changes after
each commit, so a read that was begun for this revision sees everything that was committed before it. What is committed later
changes the revision and wakes the follower again.

Everything here runs in the event loop's thread, except the read itself. A reader that leaves does not end the read of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from shoal.core.jobs import JobSummary
from shoal.server.models.jobs import Job

if TYPE_CHECKING:
    from shoal.server.context import Context
    from shoal.server.policy import Access


_LIFE_S = 1.0
"""Seconds for which news are shared. A change that nobody announced is then found by the followers' regular look."""


class Position(NamedTuple):
    """Place of a follower in a job's log, and which lines it wants."""

    cursor: int
    node: int | None
    rank: int | None
    since: float | None


class FeedUpdate(NamedTuple):
    """Present state of a job and the log lines after a position."""

    summary: JobSummary | None
    """None if the job is gone."""
    log: str
    """Event with the new lines, encoded; empty if there are none."""
    cursor: int
    more: bool
    metrics_at: int


class _Feed(NamedTuple):
    revision: int | None
    begun_s: float
    tasks: dict[tuple[str, Position], asyncio.Task[FeedUpdate]]


class Feeds:
    """News of the jobs that are followed now."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Feed] = {}

    async def read(self, ctx: Context, access: Access, job_id: str, at: Position) -> FeedUpdate:
        """Return the news after a position, together with all followers that ask for the same."""
        revision, now_s = ctx.live.revision(job_id), asyncio.get_running_loop().time()
        feed = self._jobs.get(job_id)
        if feed is None or feed.revision != revision or now_s - feed.begun_s > _LIFE_S:
            feed = self._jobs[job_id] = _Feed(revision, now_s, {})
        tasks, key = feed.tasks, (access.workspace_id, at)
        if (task := tasks.get(key)) is None:
            task = tasks[key] = asyncio.ensure_future(run_in_threadpool(_read, ctx, access, job_id, at))
            task.add_done_callback(_forget_on_error(tasks, key))
        return await asyncio.shield(task)

    def forget(self, ctx: Context, job_id: str) -> None:
        """Drop the news of a job that nobody follows any more."""
        if ctx.live.revision(job_id) is None:
            self._jobs.pop(job_id, None)


def event(kind: str, body: BaseModel, cursor: int) -> str:
    """Return a server-sent event."""
    return f"event: {kind}\nid: {cursor}\ndata: {body.model_dump_json()}\n\n"


def _forget_on_error(
    tasks: dict[tuple[str, Position], asyncio.Task[FeedUpdate]], key: tuple[str, Position]
) -> Callable[[asyncio.Task[FeedUpdate]], None]:
    def done(task: asyncio.Task[FeedUpdate]) -> None:
        if task.cancelled() or task.exception() is not None:
            tasks.pop(key, None)

    return done


def _read(ctx: Context, access: Access, job_id: str, at: Position) -> FeedUpdate:
    from shoal.server.jobs import streams, views
    from shoal.server.metrics import reads as metric_reads

    with ctx.db.read() as session:
        job = session.get(Job, job_id)
        summary = views.job_summary(session, job) if job is not None else None
        metrics_at = metric_reads.cursor(session, job_id) if job is not None else 0
    if summary is None:
        return FeedUpdate(None, "", at.cursor, False, 0)
    page = streams.read_logs(ctx, access, job_id, after=at.cursor, node=at.node, rank=at.rank, since=at.since)
    log = event("log", page, page.cursor) if page.lines else ""
    return FeedUpdate(summary, log, page.cursor, page.more, metrics_at)
