"""Data from node to node: what another node has, or is getting anyway, need not come from the server once more.

Each chunk has one node of the gang that gets it from the server, by its hash; the others ask that one. Nodes that have all of
it, from other jobs of the workspace, are asked first. What they send is compared with its hash, and who is slow or gone is
not asked again: the server has everything.
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

from shoal.agent.wire import Neighbours as Told
from shoal.core.errors import Corrupt
from shoal.store.hashing import MAX_CHUNK, verify

logger = logging.getLogger(__name__)

SIZE = 8
"""Bytes that say how long an answer is; 0: not here."""
_CONNECT_S, _ANSWER_S = 1.0, 3.0
_RECENT = 64 << 20
_COMES_UP_S = 3.0
"""A gang does not start in the same instant: so long, who does not listen yet is waited for."""

Fetch = Callable[[str], bytes]


class Neighbours:
    """Chunks of one manifest, from whoever is to give them. For many threads."""

    def __init__(self, manifest_id: str, told: Told, fetch: Fetch):
        """`fetch`: from the server, verified."""
        self.told = told
        self.from_server = self.from_others = 0
        """Bytes that came this way."""
        self._manifest_id, self._server = manifest_id, Once(fetch)
        self._gone: set[str] = set()
        self._local, self._counting = threading.local(), threading.Lock()
        self._patient_until = time.monotonic() + _COMES_UP_S

    def get(self, name: str) -> bytes:
        at = chosen(name, self.told, self._gone)
        if at is not None and at != self.told.own and (data := self._ask(at, name)) is not None:
            with self._counting:
                self.from_others += len(data)
            return data
        return self.pull(name)

    def pull(self, name: str) -> bytes:
        """From the server, once for all who ask for it at about this time."""
        data, is_new = self._server.get(name)
        with self._counting:
            self.from_server += len(data) if is_new else 0
        return data

    def settle(self) -> None:
        """All is on the disk here, nothing need be kept in memory."""
        self._server.forget()

    def _ask(self, at: str, name: str) -> bytes | None:
        """None where it is not to be had."""
        try:
            data = self._exchange(at, name)
            if data is not None:
                verify(name, data)
            return data
        except (OSError, Corrupt) as error:
            logger.warning("%s gives no data, the server does: %s", at, error)
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
    """What several ask for at about the same time is got once."""

    def __init__(self, fetch: Fetch):
        self._fetch = fetch
        self._lock = threading.Lock()
        self._flights: dict[str, Future[bytes]] = {}
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def get(self, name: str) -> tuple[bytes, bool]:
        """The bytes, and whether they were got just now, for this caller."""
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


def chosen(name: str, told: Told, gone: set[str]) -> str | None:
    """Who is to be asked for this chunk, the same for all who were told the same; None: the server."""
    able = [at for at in told.holders if at not in gone] or [at for at in told.gang if at not in gone]
    return max(able, key=lambda at: hashlib.blake2b(f"{at} {name}".encode(), digest_size=8).digest(), default=None)


def proof(key: str, at: str, name: str) -> str:
    """That who asks was told the key of a manifest; good for this chunk at this node only."""
    return hmac.digest(key.encode(), f"{at} {name}".encode(), "sha256").hex()


def split(at: str) -> tuple[str, int]:
    host, _, port = at.rpartition(":")
    return host, int(port)


def exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes. The time a socket allows is for each of its calls; here it is for all together."""
    allowed = line.gettimeout()
    deadline = None if allowed is None else time.monotonic() + allowed
    whole, have = bytearray(size), 0
    with memoryview(whole) as view:
        while have < size:
            got = line.recv_into(view[have:])
            if not got:
                raise ConnectionResetError("hung up")
            have += got
            if deadline is not None and have < size and time.monotonic() > deadline:
                raise TimeoutError(f"{have} of {size} bytes in {allowed:g} s")
    return bytes(whole)
