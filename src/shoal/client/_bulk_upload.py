"""Bulk transfers over plain HTTP with the standard library. They use a third of the CPU time of httpx.

Only for http:// without a proxy, where the network may be faster than the client. TLS and proxies are left to httpx.
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
"""Largest number of buffers of one sendmsg call (IOV_MAX)."""


class ConnectionPool:
    """Pool of connections to one server, kept open between requests. Thread-safe.

    A connection is either in `_idle`, which `_lock` protects, or owned by the one thread that took it out. It goes back only
    after the whole answer was read; after any error it is closed.
    """

    def __init__(self, connect_timeout_s: float):
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []

    @staticmethod
    def supports(url: str) -> bool:
        """Return whether this class can be used for a URL: plain HTTP without a proxy."""
        has_proxy = any(name.lower() in _PROXIES and value for name, value in os.environ.items())
        return url.startswith("http://") and (is_loopback(url) or not has_proxy)

    @contextmanager
    def post(
        self, url: str, pieces: Sequence[Piece], headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Send the pieces as one body and yield the answer, whose body must be read inside the `with`.

        Raise errors of httpx.
        """
        parts = urlsplit(url)
        connection, is_used = self._checkout(parts.netloc)
        response = None
        try:
            try:
                response = self._request(connection, parts.path, pieces, headers, timeout_s)
            except (ConnectionError, http.client.RemoteDisconnected):
                # The server may have closed a kept connection in the meantime.
                if not is_used:
                    raise
                connection.close()
                response = self._request(connection, parts.path, pieces, headers, timeout_s)
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

    def _checkout(self, netloc: str) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            for index, (host, connection) in enumerate(self._idle):
                if host == netloc:
                    del self._idle[index]
                    return connection, True
        return http.client.HTTPConnection(netloc, timeout=self._connect_timeout_s), False

    def _request(
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
            # A server that refuses the request does not read all of it; its answer may already be here.
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
    """Return the equivalent error of httpx, which the rest of the client handles; None if there is none."""
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(str(error))
    if isinstance(error, ConnectionError | http.client.HTTPException):
        return httpx.ReadError(str(error) or type(error).__name__)
    return None
