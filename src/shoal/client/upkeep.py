"""Maintenance of the server's store. For admins."""

from __future__ import annotations

from shoal.client._http import parse
from shoal.client._noun import Noun
from shoal.core.artifacts import CheckView, GcView, StoreUsageView

LONG_S = 86_400.0
"""Time-out in seconds. Reading a whole store can take hours."""


class Upkeep(Noun):
    def check(self, *, quarantine: bool = False) -> CheckView:
        """Read and verify every chunk.

        `quarantine` moves damaged ones aside, so that pushing the same files again repairs them.
        """
        params = {"quarantine": quarantine}
        return parse(CheckView, self._http.send("POST", "/store/check", params=params, timeout_s=LONG_S))

    def gc(self, *, grace_s: float, dry_run: bool = False) -> GcView:
        """Remove data that nothing refers to and that is older than the grace period."""
        params = {"grace_s": grace_s, "dry_run": dry_run}
        return parse(GcView, self._http.send("POST", "/store/gc", params=params, timeout_s=LONG_S))

    def usage(self) -> StoreUsageView:
        return parse(StoreUsageView, self._http.send("GET", "/store/usage", timeout_s=LONG_S))
