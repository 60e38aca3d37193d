"""Notifications inside the server: wakes the scheduler, and readers that follow one job or all, from any thread.

Why no change is missed:
- `Notifications._lock` guards the sets of followers and watchers. They are copied under it and woken after it is released, so a woken
  reader can never deadlock with the thread that wakes it. A reader that has just left may be woken once more; that is harmless.
- asyncio events belong to the loop of their reader; other threads set them with `call_soon_threadsafe`.
- Readers clear their event first and take the changes second. A change in between is either taken, or sets the event again.
- `waiting` is replaced as a whole, and heartbeats are single dictionary writes, which are atomic.
- Nothing here is durable. Changes are committed before they are announced, so after a crash readers start from the database.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shoal.core.lag import Lag
from shoal.server.jobs.machine_lag import MachineLag


class Watcher:
    """Collects the ids of changed jobs for one asynchronous reader."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop, self._event = loop, asyncio.Event()
        self._lock = threading.Lock()
        self._changed: set[str] = set()

    def notify(self, job_id: str | None) -> None:
        """Add a changed job and wake the reader; without a job, only wake it. May be called from any thread."""
        with self._lock:
            is_first = not self._changed
            if job_id is not None:
                self._changed.add(job_id)
        if is_first or job_id is None:
            self._loop.call_soon_threadsafe(self._event.set)

    async def changes(self, timeout_s: float) -> set[str]:
        """Wait for changes and return the jobs that have changed since the last call; empty after the timeout."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return set()
        self._event.clear()
        with self._lock:
            taken, self._changed = self._changed, set()
        return taken


class Listener:
    """Collects the ids of changed jobs and sweeps for a thread that waits for them."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._lock, self._event = threading.Lock(), threading.Event()

    def notify(self, changed: str | None) -> None:
        with self._lock:
            if changed is not None:
                self._changed.add(changed)
        self._event.set()

    def pop_changed(self) -> set[str]:
        """Return the ids that have changed since the last call."""
        self._event.clear()
        with self._lock:
            taken, self._changed = self._changed, set()
        return taken

    def wait(self, timeout_s: float) -> None:
        """Wait until something has changed, or until the timeout."""
        self._event.wait(timeout_s)


class Notifications:
    """Notifications and other state in memory. The database is the truth; a missed wake-up only causes a delay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(set)
        self._revisions: dict[str, int] = {}
        self._next_revision = itertools.count()
        self._watchers: set[Watcher | Listener] = set()
        self.scheduler = threading.Event()
        self.leases = threading.Event()
        """Event that wakes the lease clock."""
        self.closing = False
        self.lag = Lag()
        self.machine_lag = MachineLag(lambda: self.lag.awake_s())
        self._beats: dict[tuple[str, int], float] = {}
        self._waiting: dict[str, str] = {}
        self.leaving: set[str] = set()
        """Preflights to be removed once their agents have ended."""
        self.asked_for: dict[str, float] = {}
        """Preflight → monotonic time of the last status request."""

    @property
    def waiting(self) -> dict[str, str]:
        """Job id → reason why it waits, from the scheduler's last pass."""
        return self._waiting

    @waiting.setter
    def waiting(self, found: dict[str, str]) -> None:
        before, self._waiting = self._waiting, found
        if before == found:
            return
        for job_id in before.keys() | found.keys():
            if before.get(job_id) != found.get(job_id):
                self._notify_watchers(job_id)

    def job_changed(self, job_id: str, *, schedule: bool = False, by: Listener | None = None) -> None:
        """Wake the followers and watchers of a job; with `schedule` also the scheduler.

        `by`: a listener that is not notified.
        """
        with self._lock:
            followers = list(self._followers.get(job_id, ()))
            if followers:
                self._revisions[job_id] = next(self._next_revision)
        for loop, event in followers:
            loop.call_soon_threadsafe(event.set)
        self._notify_watchers(job_id, by)
        if schedule:
            self.scheduler.set()

    def sweep_changed(self, sweep_id: str, *, by: Listener | None = None) -> None:
        """Wake the followers of a sweep, and the sweeper; works like `job_changed`."""
        self.job_changed(sweep_id, by=by)

    def listen(self) -> Listener:
        """Return a listener for changes of every job and sweep, for a thread that runs as long as the server."""
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
        self._notify_watchers(None)
        self.scheduler.set()
        self.leases.set()

    @asynccontextmanager
    async def following(self, job_id: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever the job changes or logs something."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._followers[job_id].add(entry)
            self._revisions.setdefault(job_id, next(self._next_revision))
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._followers[job_id].discard(entry)
                if not self._followers[job_id]:
                    del self._followers[job_id]
                    self._revisions.pop(job_id, None)

    def revision(self, job_id: str) -> int | None:
        """Return a number that changes with every change of a followed job and is never used again; None if nobody follows."""
        with self._lock:
            return self._revisions.get(job_id)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """Yield a watcher for changes of every job."""
        watcher = Watcher(asyncio.get_running_loop())
        with self._lock:
            self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers.discard(watcher)

    def _notify_watchers(self, job_id: str | None, by: Listener | None = None) -> None:
        with self._lock:
            watchers = [watcher for watcher in self._watchers if watcher is not by]
        for watcher in watchers:
            watcher.notify(job_id)

    # Node timeouts use this process's monotonic clock without its stalls: neither a change of the wall clock nor a server that
    # could not listen ends a node, and after a restart of the server every node starts with its full timeout.

    def beat(self, attempt_id: str, node: int) -> None:
        self._beats[attempt_id, node] = self.lag.awake_s()

    def silence_s(self, attempt_id: str, node: int) -> float:
        """Return the seconds since a node's last heartbeat, or since the first call for it."""
        now = self.lag.awake_s()
        return now - self._beats.setdefault((attempt_id, node), now)

    def forget(self, attempt_id: str, num_nodes: int) -> None:
        for node in range(num_nodes):
            self._beats.pop((attempt_id, node), None)
            self.machine_lag.forget(attempt_id, node)
