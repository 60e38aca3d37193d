"""Background thread that publishes this peer's record and reads the records of the others.

Why it is safe: `records` and `commands` are replaced as a whole and never changed in place, so the training thread sees an old
or a new value, never a mix. `refresh` runs in both threads, and the lock keeps them from using the Reader at the same time.
`publish` needs no lock: it only describes this peer and stores the result. The description is read while the training thread
may be changing it, so one record can combine an old hash with a new round; every change ends with `notify`, which publishes
again. The event is cleared before the record is built, so a change during publishing causes another record. If the process
dies, its record expires by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shoal.swarm.records import OwnerCommands, Progress

if TYPE_CHECKING:
    from shoal.swarm.dht_records import SwarmRecords

logger = logging.getLogger(__name__)

_PUBLISH_S = 10.0
"""Seconds between two records without a change."""
_LONGEST_S, _SHARE = 4.0, 1 / 8
"""Time between two reads without a change of our own: a share of the time since the last change, up to a maximum. The others
are in the middle of a round too then."""


class Watch(threading.Thread):
    """Publisher and reader of records. `records` and `commands` are those of the last read; no training step waits for it."""

    def __init__(self, dht_records: SwarmRecords, describe: Callable[[], Progress], *, every_s: float):
        super().__init__(name="shoal-swarm-watch", daemon=True)
        self._dht_records, self._describe, self._every_s = dht_records, describe, every_s
        self._changed, self._over, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.records: Mapping[str, Progress] = {}
        self.commands: OwnerCommands | None = None

    def notify(self) -> None:
        """Publish soon, because this peer's state has changed."""
        self._changed.set()

    def refresh(self) -> Mapping[str, Progress]:
        """Read the records now and return them."""
        with self._lock:
            self.records = self._dht_records.reader.lively(self._dht_records.progress())
            self.commands = self._dht_records.reader.commands
        return self.records

    def publish(self) -> None:
        """Publish this peer's record now."""
        self._dht_records.publish(self._describe())

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        self._changed.set()
        if self.is_alive():
            self.join(5.0)

    def run(self) -> None:
        published_at, changed_at = float("-inf"), time.monotonic()
        while not self._over.is_set():
            since_s = time.monotonic() - changed_at
            changed = self._changed.wait(max(self._every_s, min(_LONGEST_S, _SHARE * since_s)))
            if self._over.is_set():
                return
            try:
                if changed or time.monotonic() - published_at > _PUBLISH_S:
                    self._changed.clear()
                    self.publish()
                    published_at = time.monotonic()
                    changed_at = published_at if changed else changed_at
                self.refresh()
            except Exception as error:
                # The DHT may be shutting down, or a peer's record may be invalid: neither is a reason to stop training.
                logger.debug("shoal: reading the swarm's records failed: %s", error)
