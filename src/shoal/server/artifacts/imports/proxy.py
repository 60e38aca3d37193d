"""Forward proxy on loopback for obstore, which opens its own connections: it can reach only what the SSRF guard allows.

All connections of that library, also retries and redirects, pass through it and are checked like all others.
"""

from __future__ import annotations

import base64
import secrets
import socket
from collections.abc import Callable

from shoal.core.errors import ShoalError
from shoal.core.proxy import ForwardProxy, connect_any
from shoal.server.ssrf_guard import Guard

_IDLE_S = 60.0


class GuardedProxy:
    """Proxy with a password of its own, so that no other process of the machine can use it."""

    def __init__(self, guard: Guard, *, stop: Callable[[], bool] = lambda: False):
        self._guard = guard
        self.refusal: ShoalError | None = None
        """Reason why the last connection was refused; the library itself sees only a failure."""
        password = secrets.token_urlsafe(24)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://shoal:{password}@127.0.0.1:{listener.getsockname()[1]}"
        self._proxy = ForwardProxy(
            listener,
            self._connect,
            name="import-proxy",
            authorization=b"Basic " + base64.b64encode(f"shoal:{password}".encode()),
            plain_http=True,
            idle_s=_IDLE_S,
            stop=stop,
        )

    def close(self) -> None:
        self._proxy.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        try:
            addresses = self._guard.addresses(host, port)
        except ShoalError as error:
            self.refusal = error
            raise PermissionError(error.message) from error
        return connect_any(addresses, port)
