"""Cached results of slow queries, refreshed in the background so that callers do not wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from shoal.core.background_loops import describe
from shoal.core.errors import ShoalError

logger = logging.getLogger(__name__)


class CachedQuery:
    """Runs a query in a background thread, at most once per `every_s`, when a caller needs its result.

    `_running` admits one run at a time. `refresh` acquires it in the calling thread and the background thread releases it.
    """

    def __init__(self, query: Callable[[], None], every_s: float):
        """Set up without running. `query` stores its result itself."""
        self._query, self._every_s = query, every_s
        self._running = threading.Lock()
        self._ran_at = float("-inf")
        self.known = False
        """True once the query has succeeded at least once."""
        self.problem: str | None = None

    def refresh(self) -> threading.Thread | None:
        """Start a run if the last one is too old and none is under way; return its thread, or None."""
        if time.monotonic() - self._ran_at < self._every_s or not self._running.acquire(blocking=False):
            return None
        thread = threading.Thread(target=self._run_and_release, name="slurm", daemon=True)
        thread.start()
        return thread

    def now(self) -> None:
        """Run the query in this thread, after a run that is under way."""
        with self._running:
            self._run()

    def _run_and_release(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()

    def _run(self) -> None:
        try:
            self._query()
            self.known, self.problem = True, None
        except Exception as error:
            if self.problem is None:
                logger.warning("%s", describe(error), exc_info=None if isinstance(error, ShoalError) else error)
            self.problem = describe(error)
        self._ran_at = time.monotonic()
