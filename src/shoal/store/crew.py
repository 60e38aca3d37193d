"""Jobs that are mostly Python, at which threads only take turns: done by one, and by more once it is seen to wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

_WAITING = 10.0
"""Times its processor time that a job took: then a slow disk or line is waited for, not other threads."""


class Crew(Generic[T]):
    def __init__(self, pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], T]]):
        self._pool = pool
        self._jobs = deque(jobs)
        self._started: deque[Future[list[T]]] = deque()

    def start(self, threads: int = 1) -> None:
        for _ in range(min(threads, len(self._jobs))):
            self._started.append(self._pool.submit(self._work))

    def started(self) -> set[Future[list[T]]]:
        """What has begun since this was last asked. Ask again after each that is done."""
        return {self._started.popleft() for _ in range(len(self._started))}

    def _work(self) -> list[T]:
        done: list[T] = []
        is_alone = True
        while self._jobs:
            try:
                job = self._jobs.popleft()
            except IndexError:  # another was faster
                break
            start, busy = time.perf_counter(), time.thread_time()
            done.append(job())
            waited = time.perf_counter() - start > _WAITING * (time.thread_time() - busy)
            if waited and is_alone and self._jobs:
                is_alone = False
                self.start()
        return done
