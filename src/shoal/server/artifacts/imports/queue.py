"""Threads that run imports: a limited number, of which no workspace can use all."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from shoal.core.background_loops import Problem
from shoal.server.context import Context
from shoal.server.notifications import Notifications

logger = logging.getLogger(__name__)

THREADS = 4
PER_WORKSPACE = 2


class ImportQueue:
    """Queue of imports, in memory. Waiting imports are also in the database, and are queued again at the next start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._running: Counter[str] = Counter()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def add(self, workspace_id: str, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            self._waiting.append((workspace_id, work))
            if len(self._threads) < THREADS:
                thread = threading.Thread(target=self._run, name="import", daemon=True)
                thread.start()  # it waits for the lock, which this thread holds; a thread that fails to start is not counted
                self._threads.add(thread)

    def stop(self, timeout_s: float) -> bool:
        """Start no more imports and wait for the running ones; return False if some still run."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def problem(self) -> Problem | None:
        """Return a problem if imports wait and no thread is left to run them."""
        with self._lock:
            dead = [thread for thread in self._threads if not thread.is_alive()]
            if self._closed or not (dead or (self._waiting and not self._threads)):
                return None
            return Problem("imports", "dead", 0.0, f"{len(self._waiting)} imports wait and a thread has ended")

    def _run(self) -> None:
        while True:
            with self._lock:
                taken = self._next_allowed()
                if taken is None:
                    # Imports that still wait belong to workspaces at their limit; a thread of theirs will take them.
                    self._threads.discard(threading.current_thread())
                    return
            workspace_id, work = taken
            try:
                work()
            except BaseException:
                logger.exception("an import failed unexpectedly")
            finally:
                with self._lock:
                    self._running[workspace_id] -= 1

    def _next_allowed(self) -> tuple[str, Callable[[], None]] | None:
        for at, (workspace_id, work) in enumerate(self._waiting):
            if self._running[workspace_id] < PER_WORKSPACE:
                del self._waiting[at]
                self._running[workspace_id] += 1
                return workspace_id, work
        return None


_queues: WeakKeyDictionary[Notifications, ImportQueue] = WeakKeyDictionary()
_lock = threading.Lock()


def import_queue(ctx: Context) -> ImportQueue:
    """Return the import queue of this server."""
    with _lock:
        if ctx.live not in _queues:
            _queues[ctx.live] = found = ImportQueue()
            ctx.loops.watch("imports", found.problem)
        return _queues[ctx.live]
