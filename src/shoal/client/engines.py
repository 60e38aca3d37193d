"""Engines other than the server's own. For admins."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.engines import EngineAdd, EngineView

_TRY_OUT_S = 180.0
"""Time-out in seconds. A cluster's commands may be slow, and several are run."""


class Engines(Noun):
    def add(self, wanted: EngineAdd) -> EngineView:
        """Add an engine. It is refused, with all problems, if it could not run a job."""
        return self._http.call(EngineView, "POST", "/admin/engines", wanted, timeout_s=_TRY_OUT_S)

    def list(self) -> list[EngineView]:
        return self._http.fetch(list[EngineView], "/admin/engines")

    def check(self, name: str) -> EngineView:
        """Return an engine with its present problems."""
        path = f"/admin/engines/{segment(name)}/check"
        return self._http.call(EngineView, "POST", path, repeatable=True, timeout_s=_TRY_OUT_S)

    def remove(self, name: str) -> None:
        """Remove an engine. It is refused while jobs use it."""
        self._http.send("DELETE", f"/admin/engines/{segment(name)}")
