"""Who waits for what: wakes the scheduler, and readers that follow a job, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Live:
    """In-memory and best-effort: truth is in the database; a missed wake-up only means a later look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(set)
        self.scheduler = threading.Event()
        self.closing = False
        self._beats: dict[tuple[str, int], float] = {}
        self.waiting: dict[str, str] = {}
        """Job id → why it waits, from the scheduler's last look."""

    def job_changed(self, job_id: str, *, schedule: bool = False) -> None:
        with self._lock:
            followers = list(self._followers.get(job_id, ()))
        for loop, event in followers:
            loop.call_soon_threadsafe(event.set)
        if schedule:
            self.scheduler.set()

    def close(self) -> None:
        self.closing = True
        with self._lock:
            jobs = list(self._followers)
        for job_id in jobs:
            self.job_changed(job_id)
        self.scheduler.set()

    @asynccontextmanager
    async def following(self, job_id: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever the job changes or logs something."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._followers[job_id].add(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._followers[job_id].discard(entry)
                if not self._followers[job_id]:
                    del self._followers[job_id]

    # Leases run on this process's monotonic clock: a jump of the wall clock ends none,
    # and a restart of the server gives every node a fresh one.

    def beat(self, attempt_id: str, node: int) -> None:
        self._beats[attempt_id, node] = time.monotonic()

    def silence_s(self, attempt_id: str, node: int) -> float:
        """Seconds since the node was last heard of (or first asked about)."""
        return time.monotonic() - self._beats.setdefault((attempt_id, node), time.monotonic())

    def forget(self, attempt_id: str, num_nodes: int) -> None:
        for node in range(num_nodes):
            self._beats.pop((attempt_id, node), None)
