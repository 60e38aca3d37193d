"""Bulk bytes over plain HTTP with the standard library: a third of the processor time that httpx takes for them.

Only for http:// without a proxy, where the line may be faster than we are. TLS and proxies stay with httpx.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from shoal.client._httpx import httpx
from shoal.client.config import is_loopback

Piece = bytes | bytearray | memoryview

_PROXIES = ("http_proxy", "all_proxy")
_MOST_PIECES = 1024
"""What one call takes (IOV_MAX)."""


class Lane:
    """Connections to one server at a time, kept open between requests. For several threads."""

    def __init__(self, connect_timeout_s: float):
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []

    @staticmethod
    def takes(url: str) -> bool:
        has_proxy = any(name.lower() in _PROXIES and value for name, value in os.environ.items())
        return url.startswith("http://") and (is_loopback(url) or not has_proxy)

    @contextmanager
    def post(
        self, url: str, pieces: Sequence[Piece], headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Send the pieces as one body; the answer's own body is read within the `with`. Raises httpx's errors."""
        parts = urlsplit(url)
        connection, is_used = self._take(parts.netloc)
        response = None
        try:
            try:
                response = self._ask(connection, parts.path, pieces, headers, timeout_s)
            except (ConnectionError, http.client.RemoteDisconnected):
                # A kept connection may have been closed by the other side meanwhile.
                if not is_used:
                    raise
                connection.close()
                response = self._ask(connection, parts.path, pieces, headers, timeout_s)
            yield response
        except BaseException as error:
            connection.close()
            if (known := _as_httpx(error)) is not None:
                raise known from error
            raise
        if response.isclosed() and not response.will_close:
            with self._lock:
                self._idle.append((parts.netloc, connection))
        else:
            connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take(self, netloc: str) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            for index, (host, connection) in enumerate(self._idle):
                if host == netloc:
                    del self._idle[index]
                    return connection, True
        return http.client.HTTPConnection(netloc, timeout=self._connect_timeout_s), False

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        pieces: Sequence[Piece],
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> http.client.HTTPResponse:
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as error:
                raise httpx.ConnectError(str(error)) from error
        connection.sock.settimeout(timeout_s)
        connection.putrequest("POST", path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(sum(map(len, pieces))))
        try:
            connection.endheaders()
            _send(connection.sock, pieces)
        except (BrokenPipeError, ConnectionResetError) as error:
            # A server that refuses does not wait for all of it, and its answer may be there already.
            try:
                return connection.getresponse()
            except (OSError, http.client.HTTPException):
                raise error from None
        return connection.getresponse()


def _send(line: socket.socket, pieces: Sequence[Piece]) -> None:
    views = [memoryview(piece) for piece in pieces if len(piece)]
    first = 0
    while first < len(views):
        done = line.sendmsg(views[first : first + _MOST_PIECES])
        while first < len(views) and done >= len(views[first]):
            done -= len(views[first])
            first += 1
        if done:
            views[first] = views[first][done:]


def _as_httpx(error: BaseException) -> httpx.TransportError | None:
    """What the rest of the client knows how to handle, for errors that are not that already."""
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(str(error))
    if isinstance(error, ConnectionError | http.client.HTTPException):
        return httpx.ReadError(str(error) or type(error).__name__)
    return None
