"""The queue: its jobs, why they wait, and the quotas of workspaces."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.jobs import JobView
from shoal.core.queue import JobChange, QueueView, QuotaSet, QuotaView, StartEstimateRequest, StartEstimateView, WhyView


class Queue(WorkspaceNoun):
    def show(self, *, limit: int | None = None, starts: bool = False) -> QueueView:
        """Return the queue in order; with `starts`, with estimated start times. Jobs of other people have no names."""
        return self._http.fetch(QueueView, "/queue", limit=limit, starts="true" if starts else None)

    def why(self, job: str) -> WhyView:
        """Return why a job waits, and a change that would start it now."""
        return self._http.fetch(WhyView, self._path("jobs", segment(job), "why"))

    def change(self, job: str, change: JobChange) -> JobView:
        """Change a waiting job. Omitted fields are left unchanged."""
        return self._http.call(JobView, "PATCH", self._path("jobs", segment(job)), change)

    def simulate(self, wish: StartEstimateRequest) -> StartEstimateView:
        """Estimate when a job would start if it were submitted now."""
        return self._http.call(StartEstimateView, "POST", self._path("queue", "simulate"), wish, repeatable=True)

    def quotas(self) -> list[QuotaView]:
        """Return the quotas of all workspaces. For admins."""
        return self._http.fetch(list[QuotaView], "/admin/quotas")

    def set_quota(self, workspace: str, quota: QuotaSet) -> QuotaView:
        return self._http.call(QuotaView, "PATCH", f"/admin/quotas/{segment(workspace)}", quota)
