"""A forward proxy on loopback for a library that opens its own connections (obstore): it reaches only what the guard lets through.

Whatever that library resolves, retries or is redirected to comes by here, and is judged and dialled as everything else is.
"""

from __future__ import annotations

import base64
import hmac
import logging
import re
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from shoal.core.errors import ShoalError
from shoal.core.loops import serve_each
from shoal.core.proxy import read_head
from shoal.server.services.import_guard import CONNECT_S, Guard

logger = logging.getLogger(__name__)

_IDLE_S = 60.0
_BLOCK = 256 << 10
_NOT_PASSED_ON = re.compile(rb"(?:proxy-[^:]*|connection|keep-alive):", re.I)


class GuardedProxy:
    def __init__(self, guard: Guard, *, stop: Callable[[], bool] = lambda: False):
        self._guard, self._stop, self._closed = guard, stop, threading.Event()
        self.refusal: ShoalError | None = None
        """Why the last connection was not made; the library only sees that it was not."""
        password = secrets.token_urlsafe(24)
        self._expected = b"Basic " + base64.b64encode(f"shoal:{password}".encode())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://shoal:{password}@127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="import-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        serve_each(self._listener, self._serve, self._closed, name="import-proxy")

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(CONNECT_S)
        try:
            head, rest = read_head(client)
            line, *headers = head.split(b"\r\n")
            if not self._is_ours(headers):
                return _refuse(client, 407)
            method, target = line.split(b" ")[:2]
            self._pass(client, method, target.decode("ascii"), headers, rest)
        except (OSError, ValueError) as error:
            logger.debug("a connection of the import proxy ended: %s", error)

    def _pass(self, client: socket.socket, method: bytes, target: str, headers: list[bytes], rest: bytes) -> None:
        parts = urlsplit(f"//{target}" if method == b"CONNECT" else target)
        host, port = parts.hostname or "", parts.port or 80
        if method != b"CONNECT" and parts.scheme != "http":
            return _refuse(client, 400)
        try:
            upstream = self._connect(host, port)
        except ShoalError as error:
            self.refusal = error
            return _refuse(client, 403)
        except OSError:
            return _refuse(client, 502)
        with upstream:
            if method == b"CONNECT":
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                # One request per connection: the next may be for another host.
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                kept = [h for h in headers if not _NOT_PASSED_ON.match(h)]
                upstream.sendall(
                    b"\r\n".join([b"%s %s HTTP/1.1" % (method, path.encode()), *kept, b"Connection: close", b"", b""])
                )
            upstream.sendall(rest)
            self._relay(client, upstream)
        return None

    def _connect(self, host: str, port: int) -> socket.socket:
        failure: OSError = OSError("no address")
        for address in self._guard.addresses(host, port)[:4]:
            try:
                return socket.create_connection((address, port), timeout=CONNECT_S)
            except OSError as error:
                failure = error
        raise failure

    def _relay(self, client: socket.socket, upstream: socket.socket) -> None:
        other = {client: upstream, upstream: client}
        quiet_since = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for one in other:
                one.settimeout(_IDLE_S)
                selector.register(one, selectors.EVENT_READ)
            while not (self._closed.is_set() or self._stop()) and time.monotonic() - quiet_since < _IDLE_S:
                for key, _ in selector.select(timeout=0.5):
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    data = source.recv(_BLOCK)
                    if not data:
                        return
                    other[source].sendall(data)
                    quiet_since = time.monotonic()

    def _is_ours(self, headers: list[bytes]) -> bool:
        for header in headers:
            name, _, value = header.partition(b":")
            if name.lower() == b"proxy-authorization":
                return hmac.compare_digest(value.strip(), self._expected)
        return False


def _refuse(client: socket.socket, status: int) -> None:
    client.sendall(b"HTTP/1.1 %d no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
