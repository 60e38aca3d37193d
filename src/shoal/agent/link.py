"""HTTP/1.1 to the server over one kept connection. Written out here because http.client takes 20 ms to import.

A Link belongs to one thread. Any failure to get an answer is `Unreachable`; the next call looks the server up again, since it
may have come back on another port.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.agent.wire import INSTANCE_HEADER, TOKEN_HEADER
from shoal.core.errors import ShoalError, Unreachable, from_wire

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
_MAX_HEAD = 64 << 10
_RETRY_LATER = frozenset({408, 421, 425, 429})
"""421: another server is at that address for now; ours will be back, and says where in its file."""


class Outage:
    """Shared by the links of an agent: while it lasts, the server is as if away. A fire drill's, never a true one."""

    SIGN_OF_LIFE_S = 5.0

    def __init__(self) -> None:
        self._until = self._sign_at = 0.0

    def begin(self, seconds: float) -> None:
        now = time.monotonic()
        self._until, self._sign_at = now + seconds, now + self.SIGN_OF_LIFE_S

    def check(self, path: str) -> None:
        """Let a call through, or not: of beats one in a while, so that the node is not taken for lost."""
        if not self._until or (now := time.monotonic()) >= self._until:
            return
        if path != "/beat" or now < self._sign_at:
            raise Unreachable("a fire drill: the server is as if away")
        self._sign_at = now + self.SIGN_OF_LIFE_S


class Link:
    def __init__(
        self,
        url: str,
        token: str,
        server_file: str | None = None,
        outage: Outage | None = None,
        *,
        instance: str | None = None,
    ):
        """`instance`: of the server, for no other to take our words."""
        self._url, self._token, self._server_file, self._instance = url, token, server_file, instance
        self.outage = outage or Outage()
        self._conn: _Connection | None = None

    def another(self) -> Link:
        """A link of the same agent, for another thread."""
        return Link(self._url, self._token, self._server_file, self.outage, instance=self._instance)

    def local_address(self) -> str:
        """The address by which this machine reaches the server."""
        address: str = self._connect().sock.getsockname()[0]
        return address

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._json("POST", path, json.dumps(body).encode(), "application/json")

    def post_bytes(self, path: str, body: bytes) -> dict[str, Any]:
        return self._json("POST", path, body, "application/octet-stream")

    def get_bytes(self, path: str) -> bytes:
        return self._call("GET", path, b"", None)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _json(self, method: str, path: str, body: bytes, kind: str) -> dict[str, Any]:
        answer = self._call(method, path, body, kind)
        try:
            value = json.loads(answer) if answer else {}
        except ValueError as error:
            raise Unreachable("what answered is no Shoal server") from error
        return value if isinstance(value, dict) else {}

    def _call(self, method: str, path: str, body: bytes, kind: str | None) -> bytes:
        self.outage.check(path)
        reused = self._conn is not None
        try:
            status, answer = self._exchange(method, path, body, kind)
        except (OSError, _BadAnswer) as error:
            self.close()
            if not reused or isinstance(error, TimeoutError):
                raise Unreachable(f"{self._url}: {error}") from error
            # An idle connection may have been closed from the other side; every call here may safely be made twice.
            return self._call(method, path, body, kind)
        if status < 300:
            return answer
        raise _refusal(status, answer)

    def _exchange(self, method: str, path: str, body: bytes, kind: str | None) -> tuple[int, bytes]:
        conn = self._connect()
        head = f"{method} {conn.prefix}/api/v1/agent{path} HTTP/1.1\r\nHost: {conn.host}\r\n{TOKEN_HEADER}: {self._token}\r\n"
        if self._instance:
            head += f"{INSTANCE_HEADER}: {self._instance}\r\n"
        if kind:
            head += f"Content-Type: {kind}\r\n"
        conn.sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, answer, keep = conn.answer()
        if not keep:
            self.close()
        return status, answer

    def _connect(self) -> _Connection:
        if self._conn is None:
            self._url = present_url(self._server_file, self._instance) or self._url
            self._conn = _Connection(self._url)
        return self._conn


def present_url(server_file: str | None, instance: str | None = None) -> str | None:
    """Return the URL the server on this machine says it has now; None where the file is of another instance."""
    if server_file:
        with suppress(OSError, ValueError, KeyError, AttributeError):
            found = json.loads(Path(server_file).read_text())
            if instance is None or found.get("instance", instance) == instance:
                return str(found["url"])
    return None


def backoff(least_s: float, most_s: float) -> Iterator[float]:
    """Seconds to wait, doubling from `least_s` up to `most_s`."""
    while True:
        yield least_s
        least_s = min(least_s * 2, most_s)


class _BadAnswer(Exception):
    """Not HTTP, or cut off."""


class _Connection:
    def __init__(self, url: str):
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
        self.host, self.prefix = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self.sock: socket.socket = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        if secure:
            import ssl

            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=host)
        self._rest = b""

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()

    def answer(self) -> tuple[int, bytes, bool]:
        """(status, body, whether the connection may be used again)."""
        head = self._until(b"\r\n\r\n", _MAX_HEAD).decode("latin-1").split("\r\n")
        try:
            status = int(head[0].split(" ", 2)[1])
            headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
            length = int(headers.get("content-length", "-1"))
        except (IndexError, ValueError) as error:
            raise _BadAnswer(f"not HTTP: {head[0][:80]!r}") from error
        keep = headers.get("connection", "").lower() != "close"
        if status in (204, 304):
            return status, b"", keep
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, self._chunked(), keep
        if length < 0:
            return status, self._to_end(), False
        return status, self._exactly(length), keep

    def _chunked(self) -> bytes:
        parts: list[bytes] = []
        while True:
            try:
                size = int(self._until(b"\r\n", _MAX_HEAD).split(b";")[0], 16)
            except ValueError as error:
                raise _BadAnswer("a chunk without a size") from error
            if size == 0:
                while self._until(b"\r\n", _MAX_HEAD):
                    pass
                return b"".join(parts)
            parts.append(self._exactly(size))
            self._exactly(2)

    def _until(self, mark: bytes, limit: int) -> bytes:
        while (at := self._rest.find(mark)) < 0:
            if len(self._rest) > limit:
                raise _BadAnswer("its head is too long")
            self._rest += self._receive()
        found, self._rest = self._rest[:at], self._rest[at + len(mark) :]
        return found

    def _exactly(self, size: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < size:
            parts.append(self._receive())
            have += len(parts[-1])
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]

    def _to_end(self) -> bytes:
        parts = [self._rest]
        self._rest = b""
        while piece := self.sock.recv(1 << 16):
            parts.append(piece)
        return b"".join(parts)

    def _receive(self) -> bytes:
        piece = self.sock.recv(1 << 16)
        if not piece:
            raise _BadAnswer("the answer was cut off")
        return piece


def _refusal(status: int, answer: bytes) -> ShoalError:
    """Only what a Shoal server itself refuses counts as refused; a proxy's error page is an outage."""
    try:
        body = json.loads(answer)
        spoken = isinstance(body.get("error"), dict)
    except (ValueError, AttributeError):
        spoken = False
    if status >= 500 or status in _RETRY_LATER or not spoken:
        return Unreachable(f"the server answered {status}")
    return from_wire(body, status)
