"""The server's chunk store as a `Remote` of `shoal.store.transfer`: find missing chunks, send them, fetch chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.artifacts import MissingReply, MissingRequest

if TYPE_CHECKING:
    from shoal.store.hashing import Data

MOST_HASHES = 20_000
SEND_TIMEOUT_S = 300.0


class Store(WorkspaceNoun):
    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Return those of the hashes that the server does not have."""
        wanted, lacking = list(dict.fromkeys(hashes)), set[str]()
        for start in range(0, len(wanted), MOST_HASHES):
            part = MissingRequest(hashes=wanted[start : start + MOST_HASHES])
            path = self._path("store", "missing")
            lacking.update(self._http.call(MissingReply, "POST", path, part, repeatable=True).missing)
        return lacking

    def send(self, chunks: Iterable[tuple[str, Data]]) -> int:
        """Store a batch of chunks. All of it is durable when this returns. Sending it twice changes nothing."""
        from shoal.store.wire import frame_pieces

        body = list(frame_pieces(chunks))
        if not body:
            return 0
        path = self._path("store", "chunks")
        reply = self._http.send("POST", path, body=body, repeatable=True, timeout_s=SEND_TIMEOUT_S)
        return int(reply.json()["stored"])

    def fetch(self, name: str) -> bytes:
        """Return a chunk's plain bytes as the server sent them. The caller must compare them with the hash."""
        return self._http.send("GET", self._path("store", "chunks", segment(name))).content
