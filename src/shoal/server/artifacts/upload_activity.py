"""Times of the last uploads of chunks by people, from which the server tells a slow push from an interrupted one."""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET_S = 3_600.0
"""Seconds without any upload in a workspace after which its old pushes count as interrupted."""


class UploadActivity:
    """Last upload of each workspace. In memory: after a restart of the server every push has `QUIET_S` to continue.

    Each access is one dictionary operation, so threads need no lock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._began_at = clock, clock()
        self._last: dict[str, float] = {}

    def note(self, workspace_id: str) -> None:
        self._last[workspace_id] = self._clock()

    def is_quiet(self, workspace_id: str) -> bool:
        """Check whether nothing was uploaded in the workspace for `QUIET_S`."""
        return self._clock() - self._last.get(workspace_id, self._began_at) >= QUIET_S
