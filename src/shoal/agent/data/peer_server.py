"""Serves chunks to other nodes (the other side of `peer_cache`), after they have proved that they may read them."""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.data.peer_cache import SIZE, Fetch, PeerCache, exactly, proof, split
from shoal.agent.wire import PeerNodes
from shoal.core.background_loops import serve_each
from shoal.store.hashing import chunk_hash

if TYPE_CHECKING:
    from shoal.core.artifacts import Manifest

logger = logging.getLogger(__name__)

_LINE = 64 + 1 + 64 + 1 + 64 + 1
"""Length of a request: manifest id, chunk hash and proof, each 64 characters and a separator."""
_FIRST_S, _IDLE_S = 10.0, 600.0
"""Seconds of silence after which a connection is closed: before and after the first valid request."""
_CALLERS = 128
_READY_S = 4.0


def open_shelves(told: dict[str, PeerNodes], fetch: Fetch) -> tuple[dict[str, Shelf], PeerServer | None]:
    """Return a shelf for each manifest shared with other nodes, and the server thread that answers them from now on."""
    shelves = {manifest_id: Shelf(PeerCache(manifest_id, about, fetch)) for manifest_id, about in told.items()}
    if own := next((about.own for about in told.values()), None):
        try:
            server = PeerServer(own, shelves.get)
            server.start()
            return shelves, server
        except OSError as error:
            logger.warning("cannot serve data to other nodes at %s: %s", own, error)
    return shelves, None


class Shelf:
    """Finds the chunks of one manifest: in its files on this machine, even while they are being written, else on the server."""

    def __init__(self, cache: PeerCache):
        self.cache = cache
        self._places: dict[str, tuple[str, int, int]] = {}
        self._tree = Path()
        self._known = threading.Event()

    def lay_out(self, manifest: Manifest, tree: Path) -> None:
        """Set where each chunk will be on disk; requests wait for this."""
        for file in manifest.files:
            offset = 0
            for chunk in file.chunks:
                self._places.setdefault(chunk.hash, (file.path, offset, chunk.size))
                offset += chunk.size
        self._tree = tree
        self._known.set()

    def may(self, at: str, name: str, given: str) -> bool:
        """Return whether the given proof is valid for this chunk at this node."""
        return hmac.compare_digest(given, proof(self.cache.told.key, at, name))

    def find(self, name: str) -> bytes | None:
        """Return a chunk, or None if it is not part of the manifest or the manifest is not known in time."""
        if not self._known.wait(_READY_S) or name not in self._places:
            return None
        return self._on_disk(name) or self.cache.pull(name)

    def _on_disk(self, name: str) -> bytes | None:
        path, offset, size = self._places[name]
        # The tree last: its temporary folder may get the final name between two of these lines.
        for root in (*self._tree.parent.glob(f".{self._tree.name}.*.tmp"), self._tree):
            with suppress(OSError), (root / path).open("rb") as file:
                file.seek(offset)
                data = file.read(size)
                # Parts that are not written yet read as zeros and do not match.
                if chunk_hash(data) == name:
                    return data
        return None


class PeerServer(threading.Thread):
    """Server thread that answers requests for chunks until it is closed."""

    def __init__(self, at: str, shelf: Callable[[str], Shelf | None]):
        """Listen at `at` (HOST:PORT). `shelf` returns the shelf of a manifest id, or None."""
        super().__init__(name="peer-server", daemon=True)
        self._at, self._shelf = at, shelf
        self._closed = threading.Event()
        host, port = split(at)
        self._listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_CALLERS
        )

    def run(self) -> None:
        serve_each(self._listener, self._serve, self._closed, name="peer-server", at_once=_CALLERS)

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()

    def _serve(self, line: socket.socket) -> None:
        with suppress(OSError, ValueError):
            line.settimeout(_FIRST_S)
            while self._answer(line):
                line.settimeout(_IDLE_S)

    def _answer(self, line: socket.socket) -> bool:
        """Answer one request; return False for an invalid one, which ends the connection."""
        manifest_id, name, given = exactly(line, _LINE).decode("ascii").split()
        shelf = self._shelf(manifest_id)
        if shelf is None or not shelf.may(self._at, name, given):
            return False
        try:
            data = shelf.find(name) or b""
        except Exception as error:
            logger.warning("chunk %s for another node: %s", name[:12], error)
            data = b""
        line.sendall(len(data).to_bytes(SIZE, "big"))
        line.sendall(data)
        return True
