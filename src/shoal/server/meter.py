"""The ledger's clock, and when each node was last heard of. In memory; what counts of it is written by services.billing.

The clock starts at the time of day and then follows one that nobody sets. As long as the machine is not booted anew, it
goes on across restarts of the server too; after a boot it never stands before what it has shown already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from shoal.core.boot import boot_id

Key = tuple[str, int]
"""An attempt's id and a node's index."""


def _since_boot_s() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Meter:
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
        """The boot, its clock and ours, at one moment."""
        boot_ms = self.boot_ms
        return self.boot, boot_ms, boot_ms + self._offset_ms

    def set_by_wall(self, *, not_before_ms: int = 0) -> None:
        """Only while nothing is open: an interval is measured by one clock."""
        self._offset_ms = max(int(self._wall_s() * 1000), not_before_ms) - self.boot_ms

    def resume(self, boot: str, boot_ms: int, at_ms: int) -> None:
        """Go on where the ledger's clock stood when it was last written down."""
        if boot == self.boot and boot_ms <= self.boot_ms:
            self._offset_ms = at_ms - boot_ms
        else:
            self.set_by_wall(not_before_ms=at_ms)

    def hear(self, attempt_id: str, node: int) -> None:
        with self._lock:
            self._heard[attempt_id, node] = self.now_ms

    def heard_ms(self, attempt_id: str, node: int) -> int | None:
        """Its last word, as far as this process has heard one."""
        return self._heard.get((attempt_id, node))

    def keep_only(self, keys: Collection[Key]) -> None:
        with self._lock:
            self._heard = {key: at for key, at in self._heard.items() if key in keys}
