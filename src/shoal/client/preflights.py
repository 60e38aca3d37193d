"""Preflights: start, get, remove."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.jobs import JobSpec
from shoal.core.preflight import PreflightAdvice, PreflightView


class Preflights(WorkspaceNoun):
    def start(self, spec: JobSpec) -> PreflightView:
        return self._http.call(PreflightView, "POST", self._path("preflights"), spec)

    def advise(self, spec: JobSpec) -> PreflightAdvice:
        """Return whether a preflight is recommended for a job."""
        return self._http.call(PreflightAdvice, "POST", self._path("preflights", "advice"), spec, repeatable=True)

    def get(self, preflight: str) -> PreflightView:
        return self._http.fetch(PreflightView, self._path("preflights", segment(preflight)))

    def drop(self, preflight: str) -> None:
        """Remove a preflight, even if it is still running."""
        self._http.send("DELETE", self._path("preflights", segment(preflight)))
