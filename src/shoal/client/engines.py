"""Engines besides the server's own; for admins."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.engines import EngineAdd, EngineView

_TRY_OUT_S = 180.0
"""Slurm's programs may be slow, and there are several to ask."""


class Engines(Noun):
    def add(self, wanted: EngineAdd) -> EngineView:
        """Refused, with all that is wrong, unless it could run a job."""
        return self._http.call(EngineView, "POST", "/admin/engines", wanted, timeout_s=_TRY_OUT_S)

    def list(self) -> list[EngineView]:
        return self._http.fetch(list[EngineView], "/admin/engines")

    def check(self, name: str) -> EngineView:
        """With the problems it has now."""
        path = f"/admin/engines/{segment(name)}/check"
        return self._http.call(EngineView, "POST", path, repeatable=True, timeout_s=_TRY_OUT_S)

    def remove(self, name: str) -> None:
        """Refused while jobs are on it."""
        self._http.send("DELETE", f"/admin/engines/{segment(name)}")
