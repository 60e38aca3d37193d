"""Minimal HTTP/1.1 client for the server's agent API over one persistent connection.

Not http.client: importing it, with email and ssl, doubles what importing this module takes, from 24 to 48 ms of processor time
(36 modules more; the least of 15 runs each). Every node of every attempt pays that before its first worker starts.

A Link belongs to one thread. Any failure to get an answer raises `Unreachable`; the next call reads the server's address from
its file again, because the server may have restarted on another port.
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
_LONGEST_RETRY_AFTER_S = 10
_RETRY_LATER = frozenset({408, 421, 425, 429})
"""Statuses that mean "try again". 421: another server has this address now; ours writes its new address to its server file."""


class Outage:
    """Simulated server outage of a fire drill, shared by all links of an agent: while it lasts, calls raise `Unreachable`."""

    SIGN_OF_LIFE_S = 5.0

    def __init__(self) -> None:
        self._until = self._sign_at = 0.0

    def begin(self, seconds: float) -> None:
        now = time.monotonic()
        self._until, self._sign_at = now + seconds, now + self.SIGN_OF_LIFE_S

    def check(self, path: str) -> None:
        """Raise `Unreachable` during the outage. One heartbeat per SIGN_OF_LIFE_S passes, or the node would count as lost."""
        if not self._until or (now := time.monotonic()) >= self._until:
            return
        if path != "/beat" or now < self._sign_at:
            raise Unreachable("fire drill: simulated server outage")
        self._sign_at = now + self.SIGN_OF_LIFE_S


class Link:
    """Connection of one thread to the server's agent API, opened at the first call and again after a failure."""

    def __init__(
        self,
        url: str,
        token: str,
        server_file: str | None = None,
        outage: Outage | None = None,
        *,
        instance: str | None = None,
        ca: str | None = None,
    ):
        """Set up a link without connecting.

        `instance` is our server's instance id; a server with another id answers 421. `ca`: PEM text of the server's own CA.
        """
        self._url, self._token, self._server_file, self._instance = url, token, server_file, instance
        self._ca = ca
        self.outage = outage or Outage()
        self._conn: _Connection | None = None

    def another(self) -> Link:
        """Return a new link to the same server, for use in another thread."""
        return Link(self._url, self._token, self._server_file, self.outage, instance=self._instance, ca=self._ca)

    def local_address(self) -> str:
        """Return the local IP address that this machine uses to reach the server."""
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
            raise Unreachable("the answer does not come from a Shoal server") from error
        return value if isinstance(value, dict) else {}

    def _call(self, method: str, path: str, body: bytes, kind: str | None) -> bytes:
        self.outage.check(path)
        reused = self._conn is not None
        try:
            status, answer, retry_after_s = self._exchange(method, path, body, kind)
        except (OSError, _BadAnswer) as error:
            self.close()
            if not reused or isinstance(error, TimeoutError):
                raise Unreachable(f"{self._url}: {error}") from error
            # The server may have closed an idle connection. Repeating is safe: every call of the agent API is idempotent.
            return self._call(method, path, body, kind)
        if status < 300:
            return answer
        raise _refusal(status, answer, retry_after_s)

    def _exchange(self, method: str, path: str, body: bytes, kind: str | None) -> tuple[int, bytes, int]:
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
        return status, answer, conn.retry_after_s

    def _connect(self) -> _Connection:
        if self._conn is None:
            self._url = present_url(self._server_file, self._instance) or self._url
            self._conn = _Connection(self._url, self._ca)
        return self._conn


def present_url(server_file: str | None, instance: str | None = None) -> str | None:
    """Return the URL in the server file; None if there is no readable file or it belongs to another instance."""
    if server_file:
        with suppress(OSError, ValueError, KeyError, AttributeError):
            found = json.loads(Path(server_file).read_text())
            if instance is None or found.get("instance", instance) == instance:
                return str(found.get("agent_url") or found["url"])
    return None


def backoff(least_s: float, most_s: float) -> Iterator[float]:
    """Yield the seconds to wait before each retry, doubling from `least_s` up to `most_s`."""
    while True:
        yield least_s
        least_s = min(least_s * 2, most_s)


def pause_after(error: Exception, pause_s: float) -> float:
    """Return the seconds to wait before the next try: `pause_s`, or more if the server's answer asked for more."""
    wanted = error.details.get("retry_after_s", 0) if isinstance(error, Unreachable) else 0
    return max(pause_s, float(wanted))


class _BadAnswer(Exception):
    """The response is not HTTP or is incomplete."""


class _Connection:
    def __init__(self, url: str, ca: str | None):
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
        self.host, self.prefix = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self.sock: socket.socket = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        if secure:
            from shoal.core.tls import context_for

            self.sock = context_for(ca).wrap_socket(self.sock, server_hostname=host)
        self._rest = b""
        self.retry_after_s = 0
        """Seconds of the last answer's Retry-After header; 0 without one."""

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()

    def answer(self) -> tuple[int, bytes, bool]:
        """Read one response; return its status, its body and whether the connection can be reused."""
        head = self._until(b"\r\n\r\n", _MAX_HEAD).decode("latin-1").split("\r\n")
        try:
            status = int(head[0].split(" ", 2)[1])
            headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
            length = int(headers.get("content-length", "-1"))
        except (IndexError, ValueError) as error:
            raise _BadAnswer(f"not HTTP: {head[0][:80]!r}") from error
        keep = headers.get("connection", "").lower() != "close"
        after = headers.get("retry-after", "")
        self.retry_after_s = min(int(after), _LONGEST_RETRY_AFTER_S) if after.isdigit() else 0
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
                raise _BadAnswer("a chunk has no valid size") from error
            if size == 0:
                while self._until(b"\r\n", _MAX_HEAD):
                    pass
                return b"".join(parts)
            parts.append(self._exactly(size))
            self._exactly(2)

    def _until(self, mark: bytes, limit: int) -> bytes:
        while (at := self._rest.find(mark)) < 0:
            if len(self._rest) > limit:
                raise _BadAnswer("the response header is too long")
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
            raise _BadAnswer("the response was cut off")
        return piece


def _refusal(status: int, answer: bytes, retry_after_s: int) -> ShoalError:
    """Return the error that a Shoal server sent, or `Unreachable` for any other response, such as a proxy's error page."""
    try:
        body = json.loads(answer)
        spoken = isinstance(body.get("error"), dict)
    except (ValueError, AttributeError):
        spoken = False
    if status >= 500 or status in _RETRY_LATER or not spoken:
        return Unreachable(f"the server answered {status}", details={"retry_after_s": retry_after_s})
    return from_wire(body, status)
