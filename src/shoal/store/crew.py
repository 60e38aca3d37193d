"""Jobs that are mostly Python, at which threads only take turns: done by one, and by more once it is seen to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from shoal.store.relay import Waited

T = TypeVar("T")


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
            waited = Waited()
            done.append(job())
            if waited and is_alone and self._jobs:
                is_alone = False
                self.start()
        return done
