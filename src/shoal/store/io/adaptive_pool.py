"""Thread pool that starts with one worker and adds more when jobs wait for I/O.

It is meant for jobs that are mostly Python code, where more threads would only compete for the GIL.

Why it is safe: `_jobs` is filled before the first worker starts, and afterwards workers only pop from it. `deque.popleft` is
atomic; a worker that loses the race for the last job gets IndexError and ends. A new worker's future is added to `_started`
before the future of the worker that started it is done, so an owner that calls `started` after each finished future misses
none. An error stays in its worker's future and is raised by the owner's `result`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from shoal.store.io.work_queue import Waited

T = TypeVar("T")


class AdaptivePool(Generic[T]):
    """Runs jobs in threads of a pool; each worker that waits for I/O adds one more worker, once."""

    def __init__(self, pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], T]]):
        self._pool = pool
        self._jobs = deque(jobs)
        self._started: deque[Future[list[T]]] = deque()

    def start(self, threads: int = 1) -> None:
        """Start workers, at most one per remaining job."""
        for _ in range(min(threads, len(self._jobs))):
            self._started.append(self._pool.submit(self._work))

    def started(self) -> set[Future[list[T]]]:
        """Return the workers started since the last call. Call it again after each worker that is done."""
        return {self._started.popleft() for _ in range(len(self._started))}

    def _work(self) -> list[T]:
        done: list[T] = []
        is_alone = True
        while self._jobs:
            try:
                job = self._jobs.popleft()
            except IndexError:  # another worker took the last job
                break
            waited = Waited()
            done.append(job())
            if waited and is_alone and self._jobs:
                is_alone = False
                self.start()
        return done
