"""API keys. A key is shown once when it is created; later only its name and last characters."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.people import ALL_SCOPES, KeyCreate, KeyCreated, KeyView, Scope


class Keys(Noun):
    def create(
        self, name: str, *, scopes: Sequence[Scope] | None = None, expires_in_s: int | None = None
    ) -> KeyCreated:
        wanted = KeyCreate(name=name, scopes=list(scopes or ALL_SCOPES), expires_in_s=expires_in_s)
        return self._http.call(KeyCreated, "POST", "/keys", wanted)

    def list(self) -> list[KeyView]:
        return self._http.fetch(list[KeyView], "/keys")

    def revoke(self, name: str) -> None:
        self._http.send("DELETE", f"/keys/{segment(name)}")
