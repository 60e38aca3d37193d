"""Something remembered that others ask for often: looked at again in the background, so that nobody waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from shoal.core.errors import ShoalError
from shoal.core.loops import describe

logger = logging.getLogger(__name__)


class Look:
    """Something to be looked at now and then: by a thread of its own, one at a time, when somebody asks."""

    def __init__(self, look: Callable[[], None], every_s: float):
        self._look, self._every_s = look, every_s
        self._looking = threading.Lock()
        self._looked_at = float("-inf")
        self.known = False
        """It has been seen at least once."""
        self.problem: str | None = None

    def refresh(self) -> threading.Thread | None:
        """Returns at once; with the thread that looks, if it has just begun to."""
        if time.monotonic() - self._looked_at < self._every_s or not self._looking.acquire(blocking=False):
            return None
        thread = threading.Thread(target=self._look_and_release, name="slurm", daemon=True)
        thread.start()
        return thread

    def now(self) -> None:
        with self._looking:
            self._try()

    def _look_and_release(self) -> None:
        try:
            self._try()
        finally:
            self._looking.release()

    def _try(self) -> None:
        try:
            self._look()
            self.known, self.problem = True, None
        except Exception as error:
            if self.problem is None:
                logger.warning("%s", describe(error), exc_info=None if isinstance(error, ShoalError) else error)
            self.problem = describe(error)
        self._looked_at = time.monotonic()
