"""Forward HTTP proxy that asks its owner for each connection: the server's for imports, and the agent's for leases."""

# Why this is safe: a connection belongs to one thread, and while it is relayed to one more, which ends with it. Each direction
# has one reader and one writer, so two peers that both send before they read cannot block each other. `_moved_at` is a single
# assignment. When a side ends its half, the other half continues; after an error or the idle limit both are shut down, which
# wakes the other thread. No address is connected to but through `connect`, which checks it.

from __future__ import annotations

import hmac
import logging
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from shoal.core.background_loops import serve_each

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
_MAX_HEAD = 32 << 10
_BLOCK = 256 << 10
_CHECK_MS = 500
_MAX_ADDRESSES = 4
_NOT_PASSED_ON = re.compile(rb"(?:proxy-[^:]*|connection|keep-alive):", re.I)


class ForwardProxy:
    """Proxy behind a listening socket. It serves CONNECT, and on request plain http too.

    Args:
        listener: Bound socket, which the proxy closes.
        connect: Returns a connection to a host and port. PermissionError refuses it, OSError means that it failed.
        name: Name of its threads.
        authorization: Value of the header Proxy-Authorization without which nothing is served; None serves everyone.
        plain_http: Whether requests for http:// URLs are served.
        idle_s: Seconds without data after which a connection is closed; None for no limit.
        at_once: Connections served at the same time; more are closed at once.
        stop: Returns True to end all connections. Only asked with `idle_s`.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[str, int], socket.socket],
        *,
        name: str,
        authorization: bytes | None = None,
        plain_http: bool = False,
        idle_s: float | None = None,
        at_once: int = 1000,
        stop: Callable[[], bool] = lambda: False,
    ):
        self._listener, self._connect, self._name, self._stop = listener, connect, name, stop
        self._authorization, self._plain_http, self._idle_s = authorization, plain_http, idle_s
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=serve_each,
            args=(listener, self._serve, self._closed),
            kwargs={"name": name, "at_once": at_once},
            name=name,
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join()
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(CONNECT_S)
        try:
            head, early = _read_head(client)
            line, *headers = head.split(b"\r\n")
            if not self._is_authorized(headers):
                return _answer(client, 407, "this proxy requires its password")
            host, port, request = self._target(line, headers)
            with self._connect(host, port) as upstream:
                if request:
                    upstream.sendall(request)
                else:
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                upstream.sendall(early)
                _Relay(client, upstream, self._idle_s, lambda: self._closed.is_set() or self._stop()).run(self._name)
        except PermissionError as error:
            _answer(client, 403, str(error))
        except ValueError as error:
            _answer(client, 405, str(error))
        except OSError as error:
            logger.debug("%s: a connection failed: %s", self._name, error)
            _answer(client, 502, str(error))
        return None

    def _is_authorized(self, headers: Iterable[bytes]) -> bool:
        if self._authorization is None:
            return True
        given = [value.strip() for name, _, value in (h.partition(b":") for h in headers)
                 if name.lower() == b"proxy-authorization"]  # fmt: skip
        return len(given) == 1 and hmac.compare_digest(given[0], self._authorization)

    def _target(self, line: bytes, headers: Iterable[bytes]) -> tuple[str, int, bytes]:
        """Return host and port, and the head to send there; it is empty for CONNECT. Raise ValueError if it is not served."""
        method, target = line.decode("ascii").split(" ")[:2]
        if method == "CONNECT":
            parts = urlsplit(f"//{target}")
            if parts.hostname is None or parts.port is None:
                raise ValueError("CONNECT needs a host and a port")
            return parts.hostname, parts.port, b""
        parts = urlsplit(target)
        if not self._plain_http or parts.scheme != "http" or parts.hostname is None:
            raise ValueError("this proxy supports only CONNECT (https)" if not self._plain_http else "not an http URL")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kept = [header for header in headers if not _NOT_PASSED_ON.match(header)]
        # One request per connection: the next may be for another host.
        request = [f"{method} {path} HTTP/1.1".encode(), *kept, b"Connection: close", b"", b""]
        return parts.hostname, parts.port or 80, b"\r\n".join(request)


def connect_any(addresses: Iterable[str], port: int) -> socket.socket:
    """Return a connection to the first of some addresses that accepts one."""
    failure = OSError("no address")
    for address in list(addresses)[:_MAX_ADDRESSES]:
        try:
            return socket.create_connection((address, port), timeout=CONNECT_S)
        except OSError as error:
            failure = error
    raise failure


def relay(one: socket.socket, other: socket.socket, *, name: str) -> None:
    """Forward data both ways until both sides have closed. `name` is that of the second thread."""
    _Relay(one, other, None, lambda: False).run(name)


class _Relay:
    """Forwards data both ways until both sides have closed, or nothing has moved for `idle_s`."""

    def __init__(self, one: socket.socket, other: socket.socket, idle_s: float | None, stop: Callable[[], bool]):
        self._ends, self._idle_s, self._stop = (one, other), idle_s, stop
        self._moved_at = time.monotonic()

    def run(self, name: str) -> None:
        one, other = self._ends
        for end in self._ends:
            end.settimeout(self._idle_s)
        back = threading.Thread(target=self._pour, args=(other, one), name=name, daemon=True)
        back.start()
        self._pour(one, other)
        back.join()

    def _pour(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := self._receive(source):
                sink.sendall(data)
                self._moved_at = time.monotonic()
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _receive(self, source: socket.socket) -> bytes:
        if self._idle_s is not None:
            ready = select.poll()
            ready.register(source, select.POLLIN)
            while not ready.poll(_CHECK_MS):
                if self._stop() or time.monotonic() - self._moved_at > self._idle_s:
                    raise TimeoutError
        return source.recv(_BLOCK)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of an HTTP request and the bytes received after it; raise ValueError if it is not an HTTP request."""
    data = b""
    while b"\r\n\r\n" not in data:
        block = client.recv(_MAX_HEAD)
        if not block or len(data) > _MAX_HEAD:
            raise ValueError("not an HTTP request")
        data += block
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _answer(client: socket.socket, status: int, text: str) -> None:
    body = text.encode() + b"\n"
    with suppress(OSError):
        client.sendall(
            b"HTTP/1.1 %d no\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
        )
