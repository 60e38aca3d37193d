"""The threads that imports run in: a bounded number, of which no workspace can take all."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from shoal.server.context import Context
from shoal.server.live import Live

logger = logging.getLogger(__name__)

THREADS = 4
PER_WORKSPACE = 2


class ImportQueue:
    """In memory: what waits here is also in the database, and is queued again at the next start."""

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
                thread.start()  # it waits for our lock; one that cannot be started does not count as running
                self._threads.add(thread)

    def stop(self, timeout_s: float) -> bool:
        """Start nothing more and wait for what runs; False if some of it is still at it."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while True:
            with self._lock:
                taken = self._take()
                if taken is None:
                    # Whatever waits is of a workspace that has its share, and so of a thread that will look again.
                    self._threads.discard(threading.current_thread())
                    return
            workspace_id, work = taken
            try:
                work()
            except BaseException:
                logger.exception("an import ended in an unforeseen way")
            finally:
                with self._lock:
                    self._running[workspace_id] -= 1

    def _take(self) -> tuple[str, Callable[[], None]] | None:
        for at, (workspace_id, work) in enumerate(self._waiting):
            if self._running[workspace_id] < PER_WORKSPACE:
                del self._waiting[at]
                self._running[workspace_id] += 1
                return workspace_id, work
        return None


_queues: WeakKeyDictionary[Live, ImportQueue] = WeakKeyDictionary()
_lock = threading.Lock()


def import_queue(ctx: Context) -> ImportQueue:
    """The one of this running server."""
    with _lock:
        return _queues.setdefault(ctx.live, ImportQueue())
