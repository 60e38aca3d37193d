"""Secrets of the workspace. Values are write-only: jobs receive them, but no API call returns them."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.people import SecretSet, SecretView


class Secrets(WorkspaceNoun):
    def set(self, name: str, value: str) -> SecretView:
        return self._http.call(SecretView, "PUT", self._path("secrets"), SecretSet(name=name, value=value))

    def list(self) -> list[SecretView]:
        return self._http.fetch(list[SecretView], self._path("secrets"))

    def delete(self, name: str) -> None:
        self._http.send("DELETE", self._path("secrets", segment(name)))
