"""Comparison of two jobs."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.diffs import JobDiff


class Diffs(WorkspaceNoun):
    def of(self, first: str, second: str) -> JobDiff:
        """Return the differences between two jobs."""
        return self._http.fetch(JobDiff, self._path("jobs", segment(first), "diff", segment(second)))
