"""What jobs tell of themselves: metrics, media, ledger, hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.metrics import MediaView, MetricName, Record


class Metrics(WorkspaceNoun):
    def names(self, job: str) -> list[MetricName]:
        return self._http.fetch(list[MetricName], self._job(job, "metric-names"))

    def read(
        self,
        job: str,
        names: Sequence[str] = (),
        *,
        points: int | None = None,
        axis: str = "step",
        after: int = 0,
        ghosts: bool = False,
        smoothing: float = 0.0,
        buckets: bool = False,
    ) -> dict[str, Any]:
        """core.metrics.MetricsView as plain values: a schema of millions of points would take longer than all the rest."""
        params = {
            "name": list(names) or None,
            "points": points,
            "axis": axis,
            "after": after,
            "ghosts": ghosts or None,
            "smoothing": smoothing or None,
            "buckets": buckets or None,
        }
        found: dict[str, Any] = json.loads(self._http.send("GET", self._job(job, "metrics"), params=params).content)
        return found

    def media(self, job: str) -> list[MediaView]:
        return self._http.fetch(list[MediaView], self._job(job, "media"))

    def medium(self, job: str, media_id: str) -> bytes:
        return self._http.send("GET", self._job(job, "media", segment(media_id))).content

    def ledger(self, job: str) -> list[Record]:
        return self._http.fetch(list[Record], self._job(job, "ledger"))

    def config(self, job: str) -> Record:
        return self._http.fetch(Record, self._job(job, "config"))

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), *parts)
