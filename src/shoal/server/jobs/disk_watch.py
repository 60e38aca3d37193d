"""Watch of the server's disk: when it is full, the job that uses the most space is named, and the job that filled it is ended.

The sizes of running attempts' working directories are measured every minute. A job has filled the disk if it has grown by at
least half of the space that was used up meanwhile. Large jobs that do not grow, and disks that others fill, cost no job.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.background_loops import Loop
from shoal.core.states import AttemptState, JobState
from shoal.server.context import Context
from shoal.server.disk_reserve import free_bytes
from shoal.server.jobs.disk_use import largest, measured, words
from shoal.server.jobs.events import record_event
from shoal.server.jobs.service import request_stop
from shoal.server.models.jobs import Attempt, Job
from shoal.store.ignore import human_size

logger = logging.getLogger(__name__)

_EVERY_S, _MEASURE_EVERY_S = 1.0, 60.0
_KEPT_MEASUREMENTS = 30
_LEAST_GROWTH = 16 << 20
"""Bytes that a job must have grown by to count as the one that filled the disk."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Free bytes of the disk, and bytes used by the working directories of each running attempt."""

    free: int
    sizes: Mapping[str, int]


def filler(before: Measurement, now: Measurement) -> tuple[str, int] | None:
    """Return the attempt that filled the disk between two measurements, and by how many bytes it grew; None if none did."""
    growth = {attempt_id: size - before.sizes.get(attempt_id, 0) for attempt_id, size in now.sizes.items()}
    attempt_id = max(growth, key=lambda one: growth[one], default=None)
    if attempt_id is None or growth[attempt_id] < max(_LEAST_GROWTH, (before.free - now.free) / 2):
        return None
    return attempt_id, growth[attempt_id]


class DiskWatch:
    """Loop that does it. Only its thread uses the private fields."""

    def __init__(self, ctx: Context, clock: Callable[[], float] = time.monotonic):
        self._ctx, self._clock = ctx, clock
        self._named = False
        """True once the largest job was named during the present shortage."""
        self._full_since: float | None = None
        self._past: deque[Measurement] = deque(maxlen=_KEPT_MEASUREMENTS)
        """Measurements of the last half hour in which the disk was not full."""
        self._measured_at = float("-inf")
        self._loop = Loop("disk use", self.check, is_closing=lambda: ctx.live.closing, every_s=_EVERY_S)

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        self._loop.stop()

    def check(self) -> None:
        reserve, now = self._ctx.db.reserve, self._clock()
        if reserve is None or not reserve.is_full:
            self._named, self._full_since = False, None
            if now - self._measured_at > _MEASURE_EVERY_S and (found := self._measure()) is not None:
                self._measured_at = now
                self._past.append(found)
            return
        if self._full_since is None:
            self._full_since = now
        if not self._named:
            self._name_largest()
        end_s = self._ctx.settings.full_disk_end_s
        if end_s and now - self._full_since >= end_s:
            self._end_filler()
            self._full_since = now  # gives what was ended the time to end

    def _measure(self) -> Measurement | None:
        """Measure the running attempts; None if there are too many files to be sure."""
        with self._ctx.db.read() as session:
            running = set(session.scalars(select(Attempt.id).where(Attempt.state != AttemptState.ENDED.value)))
        sizes, is_complete = measured(self._ctx.layout.nodes_dir, running)
        return Measurement(free_bytes(self._ctx.layout.root), sizes) if is_complete else None

    def _name_largest(self) -> None:
        if not (uses := largest(self._ctx)):
            return
        self._named = True
        logger.error("the disk is full; the jobs that use the most space: %s", words(uses))
        text = f"the server's disk is full; this job uses the most space of all: {human_size(uses[0].size)}"

        def work(session: Session) -> None:
            if (job := session.get(Job, uses[0].job_id)) is not None:
                record_event(session, job, "disk_full", text)

        self._ctx.db.write(work, essential=True)
        self._ctx.live.job_changed(uses[0].job_id)

    def _end_filler(self) -> None:
        now = self._measure()
        found = filler(self._past[0], now) if now is not None and self._past else None
        if found is None:
            return
        attempt_id, grown = found

        def work(session: Session) -> str | None:
            job = session.get_one(Job, session.get_one(Attempt, attempt_id).job_id)
            text = (
                f"it filled the server's disk: its files grew by {human_size(grown)}. "
                f"Delete it to free their space: shoal training delete {job.name}"
            )
            ended = job.kind == "job" and request_stop(session, job, text, JobState.FAILED)
            return job.id if ended else None

        if (job_id := self._ctx.db.write(work, essential=True)) is not None:
            logger.error("job %s is ended: it filled the disk, by %s", job_id, human_size(grown))
            self._ctx.live.job_changed(job_id, schedule=True)
