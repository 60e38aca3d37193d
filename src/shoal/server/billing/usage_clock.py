"""The ledger's clock, and the time of each node's last report. In memory; `billing.ledger` writes both to the database.

The clock starts at the time of day and then follows the kernel's clock since boot, which nobody can set. It continues across
restarts of the server; after a reboot it starts again, but never earlier than the last stored reading.

Why it is safe with many threads:
- Request threads call `record_message`; the database's writer thread calls `keep_only`. Both change `_heard` under `_lock`.
  `last_report_ms` reads one entry without the lock: it sees the old or the new number, and both are true reports.
- `_offset_ms` is set when the server starts (`resume`) and, in the writer thread, by `set_by_wall` while no span is open. So a
  span is measured with one offset as long as the machine does not reboot. Readers see the old or the new number.
- Reports that are only in memory are lost in a crash. The last stored report then counts, so a crash can make a bill smaller,
  never larger. A node that still runs reports again and is charged for the time between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from shoal.core.boot import boot_id

Key = tuple[str, int]
"""Attempt id and node index."""


def _since_boot_s() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class UsageClock:
    """Clock of the ledger, and the last report of each node."""

    def __init__(
        self,
        *,
        wall_s: Callable[[], float] = time.time,
        boot_s: Callable[[], float] = _since_boot_s,
        boot: str | None = None,
    ):
        self.boot = boot or boot_id()
        self._wall_s, self._boot_s = wall_s, boot_s
        self._lock = threading.Lock()
        self._heard: dict[Key, int] = {}
        self._offset_ms = 0
        self.set_by_wall()

    @property
    def now_ms(self) -> int:
        return self.boot_ms + self._offset_ms

    @property
    def boot_ms(self) -> int:
        return int(self._boot_s() * 1000)

    def reading(self) -> tuple[str, int, int]:
        """Return the boot id, the clock since boot and the ledger's clock, all read at one moment."""
        boot_ms = self.boot_ms
        return self.boot, boot_ms, boot_ms + self._offset_ms

    def set_by_wall(self, *, not_before_ms: int = 0) -> None:
        """Set the clock to the time of day. Allowed only while no span is open: a span must be measured with one clock."""
        self._offset_ms = max(int(self._wall_s() * 1000), not_before_ms) - self.boot_ms

    def resume(self, boot: str, boot_ms: int, at_ms: int) -> None:
        """Continue from the stored reading; after a reboot, from the time of day, but not before the reading."""
        if boot == self.boot and boot_ms <= self.boot_ms:
            self._offset_ms = at_ms - boot_ms
        else:
            self.set_by_wall(not_before_ms=at_ms)

    def record_message(self, attempt_id: str, node: int) -> None:
        """Record that a node's agent reported now."""
        with self._lock:
            self._heard[attempt_id, node] = self.now_ms

    def last_report_ms(self, attempt_id: str, node: int) -> int | None:
        """Return the time of a node's last report, or None if it has not reported to this process."""
        return self._heard.get((attempt_id, node))

    def keep_only(self, keys: Collection[Key]) -> None:
        """Forget all nodes but these, whose spans are open."""
        with self._lock:
            self._heard = {key: at for key, at in self._heard.items() if key in keys}
