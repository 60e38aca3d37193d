"""Data that jobs log: metrics, media, sample log, hyperparameters."""

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
        start: float | None = None,
        end: float | None = None,
    ) -> dict[str, Any]:
        """Return core.metrics.MetricsView as plain values: validating a schema with millions of points would be too slow.

        `start` and `end` select a part of the x axis; `points` is the resolution of that part.
        """
        params = {
            "name": list(names) or None,
            "points": points,
            "axis": axis,
            "after": after,
            "ghosts": ghosts or None,
            "smoothing": smoothing or None,
            "buckets": buckets or None,
            "from": start,
            "to": end,
        }
        found: dict[str, Any] = json.loads(self._http.send("GET", self._job(job, "metrics"), params=params).content)
        return found

    def media(self, job: str) -> list[MediaView]:
        return self._http.fetch(list[MediaView], self._job(job, "media"))

    def medium(self, job: str, media_id: str) -> bytes:
        return self._http.send("GET", self._job(job, "media", segment(media_id))).content

    def ledger(self, job: str) -> list[Record]:
        """Return the job's sample log: the samples used by each step."""
        return self._http.fetch(list[Record], self._job(job, "ledger"))

    def config(self, job: str) -> Record:
        """Return the job's hyperparameters."""
        return self._http.fetch(Record, self._job(job, "config"))

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), *parts)
