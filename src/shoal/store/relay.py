"""Work that threads take on in turn: one reads on in a file while another still hashes what was read before."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

Turn = Callable[[], None]

_WAITING = 10.0
"""Times its processor time that something took: then a slow disk or line is waited for, not other threads."""


class Relay:
    """Each turn may put back what comes after it. Of all that wait, the one that is least far on is taken on next."""

    def __init__(self, turns: Iterable[Turn], *, failed: Turn = lambda: None):
        """`failed` is called at the first error, from any thread, so that others who wait for something are let go."""
        self._turns = [(0.0, n, turn) for n, turn in enumerate(turns)]
        self._count = itertools.count(len(self._turns))
        self._failed = failed
        self._change = threading.Condition()
        self._over = threading.Event()
        self._busy = 0
        self._error: BaseException | None = None

    def put(self, turn: Turn, done: float = 0.0) -> None:
        """`done`: the share that its kind of work has behind it."""
        with self._change:
            if self._error is None:
                heapq.heappush(self._turns, (done, next(self._count), turn))
                self._change.notify()

    def help(self) -> None:
        """Called by a turn that has waited for a disk or a line: one more thread, as long as there are any in reserve."""
        with self._change:
            if self._reserve and not self._error:
                self._reserve -= 1
                self._pool.submit(self._work)

    def run(self, name: str, threads: int, *, reserve: int) -> None:
        """Until no turn is left. The first error, or Ctrl-C here, ends all: nothing is taken on after it."""
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
    """Whether what was done since it was made was mostly waiting."""

    def __init__(self) -> None:
        self._start, self._busy = time.perf_counter(), time.thread_time()

    def __bool__(self) -> bool:
        return time.perf_counter() - self._start > _WAITING * (time.thread_time() - self._busy)
