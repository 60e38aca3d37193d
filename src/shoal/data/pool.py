"""Background threads for reading ahead. They are daemons: a process that ends does not wait for a slow server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from shoal.data.forks import renew_after_fork

THREADS = 8

T = TypeVar("T")


class Pool:
    """Thread pool that starts a thread per task until it has `threads` of them.

    `_lock` protects the number of started threads only; the queue is safe by itself. A forked child has none of the threads, and
    its copy of the lock may be held by one of them, so `after_fork` replaces lock and queue before the child's first task.
    """

    def __init__(self, threads: int = THREADS):
        self._threads = threads
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        done: Future[T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(*args))
            except BaseException as error:
                done.set_exception(error)

        with self._lock:
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=_serve, args=(self._queue,), name="shoal-data", daemon=True).start()
        self._queue.put(run)
        return done


def _serve(work: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()


pool = Pool()
"""Pool of this process. A task may wait for another running task, but never for one that is still queued."""
