"""Number of CPU threads that a slot gets; `device_slots` says what slots this machine has."""

from __future__ import annotations

import os


def cpu_threads(kind: str, slots: int, cores: int | None = None) -> int:
    """Return the threads per worker that do not over-subscribe a full machine; `cores` defaults to this machine's."""
    share = max(1, (cores or os.cpu_count() or 1) // max(1, slots))
    return share if kind == "cpu" else min(8, share)
