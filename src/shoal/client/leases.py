"""Leases: shares of machines, rented by SSH."""

from __future__ import annotations

import time

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun, wait_until
from shoal.client.waiting import Clock
from shoal.core.leases import (
    Certificate,
    CertificateAsk,
    LeaseAsk,
    LeaseCreated,
    LeaseExtend,
    LeaseStatus,
    LeaseView,
)


class Leases(WorkspaceNoun):
    """Wherever a lease is asked for, its name or its id will do."""

    def rent(self, ask: LeaseAsk) -> LeaseCreated:
        return self._http.call(LeaseCreated, "POST", self._path("leases"), ask)

    def list(self, *, ended: bool = False) -> list[LeaseView]:
        """Newest first."""
        return self._http.fetch(list[LeaseView], self._path("leases"), ended=str(ended).lower())

    def get(self, lease: str) -> LeaseView:
        return self._http.fetch(LeaseView, self._lease(lease))

    def wait(self, lease: str, *, timeout_s: float | None = None, clock: Clock = time.monotonic) -> LeaseView:
        """Until it can be used, or never will be, or TimedOut."""
        settled = (LeaseStatus.RUNNING, LeaseStatus.OFFLINE, LeaseStatus.ENDED)
        return wait_until(
            self._http,
            lambda: self.get(lease),
            lambda view: view.status in settled,
            what="Lease",
            timeout_s=timeout_s,
            clock=clock,
        )

    def extend(self, lease: str, time_s: int) -> LeaseView:
        return self._http.call(LeaseView, "POST", self._lease(lease, "extend"), LeaseExtend(time_s=time_s))

    def restart(self, lease: str) -> LeaseView:
        return self._http.call(LeaseView, "POST", self._lease(lease, "restart"))

    def certificate(self, lease: str, public_key: str) -> Certificate:
        """For a key of one's own; it opens the lease for a few minutes."""
        ask = CertificateAsk(public_key=public_key)
        return self._http.call(Certificate, "POST", self._lease(lease, "certificate"), ask, repeatable=True)

    def release(self, lease: str) -> LeaseView:
        return self._http.call(LeaseView, "DELETE", self._lease(lease))

    def _lease(self, lease: str, *parts: str) -> str:
        return self._path("leases", segment(lease), *parts)
