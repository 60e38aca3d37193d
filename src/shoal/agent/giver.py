"""The other end of neighbours.py: gives chunks this node has, or fetches for the others, to nodes that prove they may have them."""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.neighbours import SIZE, Fetch, Neighbours, exactly, proof, split
from shoal.agent.wire import Neighbours as Told
from shoal.core.loops import serve_each
from shoal.store.hashing import chunk_hash

if TYPE_CHECKING:
    from shoal.core.artifacts import Manifest

logger = logging.getLogger(__name__)

_LINE = 64 + 1 + 64 + 1 + 64 + 1
"""Manifest, chunk, proof."""
_FIRST_S, _IDLE_S = 10.0, 600.0
"""Until a caller has proved who it is, and then."""
_CALLERS = 128
_READY_S = 4.0


def open_shelves(told: dict[str, Told], fetch: Fetch) -> tuple[dict[str, Shelf], Giver | None]:
    """One for each manifest that others were told of, too; they are answered from now on."""
    shelves = {manifest_id: Shelf(Neighbours(manifest_id, about, fetch)) for manifest_id, about in told.items()}
    if own := next((about.own for about in told.values()), None):
        try:
            giver = Giver(own, shelves.get)
            giver.start()
            return shelves, giver
        except OSError as error:
            logger.warning("gives no data to other nodes: %s: %s", own, error)
    return shelves, None


class Shelf:
    """The chunks of one manifest: in its tree, also while that is being written, else from the server."""

    def __init__(self, neighbours: Neighbours):
        self.neighbours = neighbours
        self._places: dict[str, tuple[str, int, int]] = {}
        self._tree = Path()
        self._known = threading.Event()

    def lay_out(self, manifest: Manifest, tree: Path) -> None:
        """Where what will be; until then nobody can be answered."""
        for file in manifest.files:
            offset = 0
            for chunk in file.chunks:
                self._places.setdefault(chunk.hash, (file.path, offset, chunk.size))
                offset += chunk.size
        self._tree = tree
        self._known.set()

    def may(self, at: str, name: str, told: str) -> bool:
        return hmac.compare_digest(told, proof(self.neighbours.told.key, at, name))

    def find(self, name: str) -> bytes | None:
        if not self._known.wait(_READY_S) or name not in self._places:
            return None
        return self._on_disk(name) or self.neighbours.pull(name)

    def _on_disk(self, name: str) -> bytes | None:
        path, offset, size = self._places[name]
        for root in (self._tree, *self._tree.parent.glob(f".{self._tree.name}.*.tmp")):
            with suppress(OSError), (root / path).open("rb") as file:
                file.seek(offset)
                data = file.read(size)
                # Where nothing was written yet there are zeros.
                if chunk_hash(data) == name:
                    return data
        return None


class Giver(threading.Thread):
    """Until it is closed, or the process ends."""

    def __init__(self, at: str, shelf: Callable[[str], Shelf | None]):
        """`shelf`: that of a manifest, if this node has one."""
        super().__init__(name="giver", daemon=True)
        self._at, self._shelf = at, shelf
        self._closed = threading.Event()
        host, port = split(at)
        self._listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_CALLERS
        )

    def run(self) -> None:
        serve_each(self._listener, self._serve, self._closed, name="giver", at_once=_CALLERS)

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else who waits in accept goes on waiting
        self._listener.close()

    def _serve(self, line: socket.socket) -> None:
        with suppress(OSError, ValueError):
            line.settimeout(_FIRST_S)
            while self._answer(line):
                line.settimeout(_IDLE_S)

    def _answer(self, line: socket.socket) -> bool:
        """One request; False for one that nobody of ours would make."""
        manifest_id, name, told = exactly(line, _LINE).decode("ascii").split()
        shelf = self._shelf(manifest_id)
        if shelf is None or not shelf.may(self._at, name, told):
            return False
        try:
            data = shelf.find(name) or b""
        except Exception as error:
            logger.warning("chunk %s for another node: %s", name[:12], error)
            data = b""
        line.sendall(len(data).to_bytes(SIZE, "big"))
        line.sendall(data)
        return True
