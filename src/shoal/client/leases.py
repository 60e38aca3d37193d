"""Leases: shares of machines, rented over SSH."""

from __future__ import annotations

import time

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun, wait_until
from shoal.client.waiting import Clock
from shoal.core.leases import (
    Certificate,
    CertificateRequest,
    LeaseCreated,
    LeaseExtend,
    LeaseRequest,
    LeaseStatus,
    LeaseView,
)


class Leases(WorkspaceNoun):
    """Leases of a workspace. Each is given by its name or id."""

    def rent(self, ask: LeaseRequest) -> LeaseCreated:
        return self._http.call(LeaseCreated, "POST", self._path("leases"), ask)

    def list(self, *, ended: bool = False) -> list[LeaseView]:
        """List leases, newest first. `ended` includes those that have ended."""
        return self._http.fetch(list[LeaseView], self._path("leases"), ended=str(ended).lower())

    def get(self, lease: str) -> LeaseView:
        return self._http.fetch(LeaseView, self._lease(lease))

    def wait(self, lease: str, *, timeout_s: float | None = None, clock: Clock = time.monotonic) -> LeaseView:
        """Wait until the lease can be used, is offline or has ended, and return it; raise TimedOut after `timeout_s`."""
        final = (LeaseStatus.RUNNING, LeaseStatus.OFFLINE, LeaseStatus.ENDED)
        return wait_until(
            self._http,
            lambda: self.get(lease),
            lambda view: view.status in final,
            what="Lease",
            timeout_s=timeout_s,
            clock=clock,
        )

    def extend(self, lease: str, time_s: int) -> LeaseView:
        return self._http.call(LeaseView, "POST", self._lease(lease, "extend"), LeaseExtend(time_s=time_s))

    def restart(self, lease: str) -> LeaseView:
        return self._http.call(LeaseView, "POST", self._lease(lease, "restart"))

    def certificate(self, lease: str, public_key: str) -> Certificate:
        """Return an SSH certificate for the user's own key, valid for this lease for a few minutes."""
        ask = CertificateRequest(public_key=public_key)
        return self._http.call(Certificate, "POST", self._lease(lease, "certificate"), ask, repeatable=True)

    def release(self, lease: str) -> LeaseView:
        return self._http.call(LeaseView, "DELETE", self._lease(lease))

    def _lease(self, lease: str, *parts: str) -> str:
        return self._path("leases", segment(lease), *parts)
