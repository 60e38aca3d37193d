"""Git hosts from which the workspace can clone private repositories."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.people import RegistryConnect, RegistryView


class Registries(WorkspaceNoun):
    def connect(self, host: str, token: str, username: str | None = None) -> RegistryView:
        given = {"username": username} if username else {}
        wanted = RegistryConnect(host=host, token=token, **given)
        return self._http.call(RegistryView, "PUT", self._path("registries"), wanted)

    def list(self) -> list[RegistryView]:
        return self._http.fetch(list[RegistryView], self._path("registries"))

    def disconnect(self, host: str) -> None:
        self._http.send("DELETE", self._path("registries", segment(host)))
