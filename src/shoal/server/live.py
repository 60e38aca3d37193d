"""Who waits for what: wakes the scheduler, and readers that follow one job or all, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Watcher:
    """Collects which jobs have changed, for one reader that looks at them now and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop, self._event = loop, asyncio.Event()
        self._lock = threading.Lock()
        self._changed: set[str] = set()

    def tell(self, job_id: str | None) -> None:
        """From any thread; without a job, only to wake up."""
        with self._lock:
            is_first = not self._changed
            if job_id is not None:
                self._changed.add(job_id)
        if is_first or job_id is None:
            self._loop.call_soon_threadsafe(self._event.set)

    async def changes(self, timeout_s: float) -> set[str]:
        """Jobs that have changed since the last call; empty after so long without any."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return set()
        self._event.clear()
        with self._lock:
            taken, self._changed = self._changed, set()
        return taken


class Listener:
    """Collects what has changed, for a thread that waits for it."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._lock, self._event = threading.Lock(), threading.Event()

    def tell(self, changed: str | None) -> None:
        with self._lock:
            if changed is not None:
                self._changed.add(changed)
        self._event.set()

    def take(self) -> set[str]:
        """What has changed since the last call."""
        self._event.clear()
        with self._lock:
            taken, self._changed = self._changed, set()
        return taken

    def wait(self, timeout_s: float) -> None:
        """Until something has changed, or so long."""
        self._event.wait(timeout_s)


class Live:
    """In-memory and best-effort: truth is in the database; a missed wake-up only means a later look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(set)
        self._watchers: set[Watcher | Listener] = set()
        self.scheduler = threading.Event()
        self.leases = threading.Event()
        """Wakes the clock of leases."""
        self.closing = False
        self._beats: dict[tuple[str, int], float] = {}
        self._waiting: dict[str, str] = {}
        self.leaving: set[str] = set()
        """Preflights to be removed once their agents have left."""
        self.asked_for: dict[str, float] = {}
        """Preflight → when somebody last asked how it goes (monotonic)."""

    @property
    def waiting(self) -> dict[str, str]:
        """Job id → why it waits, from the scheduler's last look."""
        return self._waiting

    @waiting.setter
    def waiting(self, found: dict[str, str]) -> None:
        before, self._waiting = self._waiting, found
        if before == found:
            return
        for job_id in before.keys() | found.keys():
            if before.get(job_id) != found.get(job_id):
                self._tell_watchers(job_id)

    def job_changed(self, job_id: str, *, schedule: bool = False, by: Listener | None = None) -> None:
        """`by`: who made the change, and need not hear of it."""
        with self._lock:
            followers = list(self._followers.get(job_id, ()))
        for loop, event in followers:
            loop.call_soon_threadsafe(event.set)
        self._tell_watchers(job_id, by)
        if schedule:
            self.scheduler.set()

    def sweep_changed(self, sweep_id: str, *, by: Listener | None = None) -> None:
        """Whoever follows it, and the sweeper, hear of it as of a job."""
        self.job_changed(sweep_id, by=by)

    def listen(self) -> Listener:
        """For a thread of the server's own that hears of every job and sweep, as long as the server lives."""
        listener = Listener()
        with self._lock:
            self._watchers.add(listener)
        return listener

    def close(self) -> None:
        self.closing = True
        with self._lock:
            jobs = list(self._followers)
        for job_id in jobs:
            self.job_changed(job_id)
        self._tell_watchers(None)
        self.scheduler.set()
        self.leases.set()

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

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """One that hears of every job."""
        watcher = Watcher(asyncio.get_running_loop())
        with self._lock:
            self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers.discard(watcher)

    def _tell_watchers(self, job_id: str | None, by: Listener | None = None) -> None:
        with self._lock:
            watchers = [watcher for watcher in self._watchers if watcher is not by]
        for watcher in watchers:
            watcher.tell(job_id)

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
