"""The thread that tells the swarm how this peer stands and keeps at hand what the others say."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shoal.swarm.records import Order, Progress

if TYPE_CHECKING:
    from shoal.swarm.book import Book

logger = logging.getLogger(__name__)

_TELL_S = 10.0
_LONGEST_S, _SHARE = 4.0, 1 / 8
"""Between two looks, while we have nothing to tell: a share of the time since, as others are in the midst of a round too."""


class Watch(threading.Thread):
    """`records` and `order` are as of the last look; looking and telling never hold up a training step."""

    def __init__(self, book: Book, describe: Callable[[], Progress], *, every_s: float):
        super().__init__(name="shoal-swarm-watch", daemon=True)
        self._book, self._describe, self._every_s = book, describe, every_s
        self._news, self._over, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.records: Mapping[str, Progress] = {}
        self.order: Order | None = None

    def tell(self) -> None:
        """Something others should know has changed."""
        self._news.set()

    def look(self) -> Mapping[str, Progress]:
        """Now, and wait for it."""
        with self._lock:
            self.records = self._book.reader.lively(self._book.progress())
            self.order = self._book.reader.order
        return self.records

    def publish(self) -> None:
        self._book.publish(self._describe())

    def close(self) -> None:
        self._over.set()
        self._news.set()
        if self.is_alive():
            self.join(5.0)

    def run(self) -> None:
        told_at, changed_at = float("-inf"), time.monotonic()
        while not self._over.is_set():
            since_s = time.monotonic() - changed_at
            news = self._news.wait(max(self._every_s, min(_LONGEST_S, _SHARE * since_s)))
            if self._over.is_set():
                return
            try:
                if news or time.monotonic() - told_at > _TELL_S:
                    self._news.clear()
                    self.publish()
                    told_at = time.monotonic()
                    changed_at = told_at if news else changed_at
                self.look()
            except Exception as error:
                # The DHT may be going down, or somebody's record be broken: neither is a reason to stop training.
                logger.debug("shoal: a look at the swarm failed: %s", error)
