"""Downloads chunks from other nodes, so that each chunk leaves the server only once per attempt.

The hash of a chunk selects the node of the attempt that downloads it from the server; the others request it from that node.
Nodes that already have all of the data, from other jobs of the workspace, are asked first. Every answer is verified against
its hash. A node that fails or is too slow is not asked again; the server always has everything.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from shoal.agent.wire import PeerNodes
from shoal.core.errors import Corrupt
from shoal.store.hashing import MAX_CHUNK, verify

logger = logging.getLogger(__name__)

SIZE = 8
"""Number of bytes in the length prefix of an answer; a length of 0 means that the chunk is not here."""
_CONNECT_S, _ANSWER_S = 1.0, 3.0
_RECENT = 64 << 20
_COMES_UP_S = 3.0
"""Seconds to keep trying a node that refuses connections, because the nodes of an attempt do not start at the same instant."""

Fetch = Callable[[str], bytes]


class PeerCache:
    """Reads the chunks of one manifest from other nodes or the server. Thread-safe: each thread has its own connections."""

    def __init__(self, manifest_id: str, told: PeerNodes, fetch: Fetch):
        """Set up without connecting. `fetch` downloads a chunk from the server and verifies it."""
        self.told = told
        self.from_server = self.from_others = 0
        """Bytes downloaded from the server and from other nodes."""
        self._manifest_id, self._server = manifest_id, Once(fetch)
        self._gone: set[str] = set()
        self._local, self._counting = threading.local(), threading.Lock()
        self._patient_until = time.monotonic() + _COMES_UP_S

    def get(self, name: str) -> bytes:
        """Return a chunk, from another node if one is responsible for it and answers, else from the server."""
        at = chosen(name, self.told, self._gone)
        if at is not None and at != self.told.own and (data := self._request(at, name)) is not None:
            with self._counting:
                self.from_others += len(data)
            return data
        return self.pull(name)

    def pull(self, name: str) -> bytes:
        """Return a chunk from the server; requests for the same chunk at about the same time share one download."""
        data, is_new = self._server.get(name)
        with self._counting:
            self.from_server += len(data) if is_new else 0
        return data

    def free_memory(self) -> None:
        """Free the chunks in memory, once everything is on disk."""
        self._server.forget()

    def _request(self, at: str, name: str) -> bytes | None:
        """Request a chunk from another node; return None if it does not have it or fails."""
        try:
            data = self._exchange(at, name)
            if data is not None:
                verify(name, data)
            return data
        except (OSError, Corrupt) as error:
            logger.warning("node %s does not deliver data, using the server instead: %s", at, error)
            self._gone.add(at)
            self._hang_up(at)
            return None

    def _exchange(self, at: str, name: str) -> bytes | None:
        line = self._connection(at)
        line.sendall(f"{self._manifest_id} {name} {proof(self.told.key, at, name)}\n".encode())
        size = int.from_bytes(exactly(line, SIZE), "big")
        if size > MAX_CHUNK:
            raise OSError(f"an answer of {size} bytes")
        return exactly(line, size) if size else None

    def _connection(self, at: str) -> socket.socket:
        lines: dict[str, socket.socket] = self._local.__dict__.setdefault("lines", {})
        if at not in lines:
            lines[at] = self._connect(at)
            lines[at].settimeout(_ANSWER_S)
        return lines[at]

    def _connect(self, at: str) -> socket.socket:
        while True:
            try:
                return socket.create_connection(split(at), _CONNECT_S)
            except ConnectionRefusedError:
                if time.monotonic() > self._patient_until:
                    raise
                time.sleep(0.05)

    def _hang_up(self, at: str) -> None:
        line = self._local.__dict__.get("lines", {}).pop(at, None)
        if line is not None:
            line.close()


class Once:
    """Shares one download between threads that request the same chunk at about the same time.

    `_lock` guards the dictionaries; the download itself runs without it. The first caller registers a Future and downloads;
    the others wait for that Future. A finished chunk enters `_recent` before its Future is resolved, so no second download can
    start in between.
    """

    def __init__(self, fetch: Fetch):
        self._fetch = fetch
        self._lock = threading.Lock()
        self._flights: dict[str, Future[bytes]] = {}
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def get(self, name: str) -> tuple[bytes, bool]:
        """Return the bytes and whether this caller downloaded them."""
        with self._lock:
            if (data := self._recent.get(name)) is not None:
                return data, False
            flight = self._flights.get(name)
            if flight is None:
                mine = self._flights[name] = Future()
        if flight is not None:
            return flight.result(), False
        try:
            data = self._fetch(name)
        except BaseException as error:
            mine.set_exception(error)
            self._land(name)
            raise
        self._land(name, data)
        mine.set_result(data)
        return data, True

    def forget(self) -> None:
        with self._lock:
            self._recent.clear()
            self._size = 0

    def _land(self, name: str, data: bytes = b"") -> None:
        with self._lock:
            del self._flights[name]
            if data:
                self._recent[name] = data
                self._size += len(data)
            while self._size > _RECENT:
                self._size -= len(self._recent.popitem(last=False)[1])


def chosen(name: str, told: PeerNodes, gone: set[str]) -> str | None:
    """Return the node to ask for this chunk (the same on all nodes with the same information), or None for the server."""
    able = [at for at in told.holders if at not in gone] or [at for at in told.gang if at not in gone]
    return max(able, key=lambda at: hashlib.blake2b(f"{at} {name}".encode(), digest_size=8).digest(), default=None)


def proof(key: str, at: str, name: str) -> str:
    """Return the proof that the caller knows the key of a manifest; valid for this chunk at this node only."""
    return hmac.digest(key.encode(), f"{at} {name}".encode(), "sha256").hex()


def split(at: str) -> tuple[str, int]:
    host, _, port = at.rpartition(":")
    return host, int(port)


def exactly(line: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes. The socket's timeout applies to all of them together, not to each call."""
    allowed = line.gettimeout()
    deadline = None if allowed is None else time.monotonic() + allowed
    whole, have = bytearray(size), 0
    with memoryview(whole) as view:
        while have < size:
            got = line.recv_into(view[have:])
            if not got:
                raise ConnectionResetError("connection closed")
            have += got
            if deadline is not None and have < size and time.monotonic() > deadline:
                raise TimeoutError(f"{have} of {size} bytes in {allowed:g} s")
    return bytes(whole)
