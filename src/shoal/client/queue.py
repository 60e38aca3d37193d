"""The queue: what waits, why, and what workspaces may use."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.jobs import JobView
from shoal.core.queue import JobChange, JobWish, QueueView, QuotaSet, QuotaView, WhyView, WishView


class Queue(WorkspaceNoun):
    def show(self, *, limit: int | None = None, starts: bool = False) -> QueueView:
        """In order; with `starts`, when each will likely start. Other people's jobs have no names."""
        return self._http.fetch(QueueView, "/queue", limit=limit, starts="true" if starts else None)

    def why(self, job: str) -> WhyView:
        """Why a job waits, and what would start it now."""
        return self._http.fetch(WhyView, self._path("jobs", segment(job), "why"))

    def change(self, job: str, change: JobChange) -> JobView:
        """Of a job that waits; what is not set stays."""
        return self._http.call(JobView, "PATCH", self._path("jobs", segment(job)), change)

    def simulate(self, wish: JobWish) -> WishView:
        """When a job would start if it were submitted now."""
        return self._http.call(WishView, "POST", self._path("queue", "simulate"), wish, repeatable=True)

    def quotas(self) -> list[QuotaView]:
        """Of all workspaces; for admins."""
        return self._http.fetch(list[QuotaView], "/admin/quotas")

    def set_quota(self, workspace: str, quota: QuotaSet) -> QuotaView:
        return self._http.call(QuotaView, "PATCH", f"/admin/quotas/{segment(workspace)}", quota)
