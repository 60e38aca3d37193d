"""Queue of small turns of work for several threads: one reads on in a file while another hashes the previous bytes.

Why it is safe: the condition `_change` protects `_turns`, `_busy`, `_error` and `_reserve`; turns run outside it. A thread
increments `_busy` when it takes a turn and decrements it after the turn has queued its successors, so "no turns and nobody
busy" means that nothing can follow, and only then `_over` is set. The first error empties the queue and makes `put` a no-op;
running turns finish, and `run` raises the error once all threads have ended. The queue needs at least one turn to start
with: without any, `run` would wait for ever.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

Turn = Callable[[], None]

_WAITING = 10.0
"""Ratio of elapsed to CPU time above which a turn has waited for a slow disk or network, not for other threads."""


class WorkQueue:
    """Queue whose turns may add further turns. The least advanced turn is taken first."""

    def __init__(self, turns: Iterable[Turn], *, failed: Turn = lambda: None):
        """Create a queue. `failed` is called at an error, from any thread, so that blocked threads can be released."""
        self._turns = [(0.0, n, turn) for n, turn in enumerate(turns)]
        self._count = itertools.count(len(self._turns))
        self._failed = failed
        self._change = threading.Condition()
        self._over = threading.Event()
        self._busy = 0
        self._error: BaseException | None = None

    def put(self, turn: Turn, done: float = 0.0) -> None:
        """Add a turn. `done` is the finished share of its file; lower values are taken first."""
        with self._change:
            if self._error is None:
                heapq.heappush(self._turns, (done, next(self._count), turn))
                self._change.notify()

    def help(self) -> None:
        """Start one more thread from the reserve. Called by a turn that has waited for a disk or network."""
        with self._change:
            if self._reserve and not self._error:
                self._reserve -= 1
                self._pool.submit(self._work)

    def run(self, name: str, threads: int, *, reserve: int) -> None:
        """Run until no turn is left. The first error, or Ctrl-C in this thread, stops all threads and is raised."""
        with ThreadPoolExecutor(threads + reserve, thread_name_prefix=name) as self._pool:
            self._reserve = reserve
            try:
                for _ in range(threads):
                    self._pool.submit(self._work)
                self._over.wait()
            except BaseException as error:
                self._end(error)
                raise
        if self._error:
            raise self._error

    def _work(self) -> None:
        while turn := self._next():
            try:
                turn()
            except BaseException as error:
                self._end(error)
            with self._change:
                self._busy -= 1
                if not self._turns and not self._busy:
                    self._over.set()
                    self._change.notify_all()

    def _next(self) -> Turn | None:
        with self._change:
            self._change.wait_for(lambda: self._turns or not self._busy)
            if not self._turns:
                return None
            self._busy += 1
            return heapq.heappop(self._turns)[2]

    def _end(self, error: BaseException) -> None:
        with self._change:
            self._error = self._error or error
            self._turns.clear()
        self._failed()


class Waited:
    """Stopwatch that is true if the time since its creation was mostly spent waiting."""

    def __init__(self) -> None:
        self._start, self._busy = time.perf_counter(), time.thread_time()

    def __bool__(self) -> bool:
        return time.perf_counter() - self._start > _WAITING * (time.thread_time() - self._busy)
