"""Listener of the tracking API: a port of the machine, or a socket that is forwarded into the sandbox.

Libraries that take time to import are imported with the first request: most jobs never send one, and every agent starts this.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.core.background_loops import serve_each

if TYPE_CHECKING:
    from shoal.agent.mlflow.api import TrackingApi

LARGEST = 16 << 20
"""Most bytes of a request."""
_API = ("/api/2.0/mlflow/", "/ajax-api/2.0/mlflow/")
_AT_ONCE = 64


class TrackingListener:
    """Serves the tracking API on a listening socket. Other users of the machine do not know the `key` in the URLs."""

    def __init__(self, listener: socket.socket, api: TrackingApi):
        self.key = os.urandom(11).hex()
        self._listener, self._api, self._closed = listener, api, threading.Event()
        threading.Thread(target=self._accept, name="mlflow", daemon=True).start()

    @classmethod
    def on_loopback(cls, api: TrackingApi) -> TrackingListener:
        """Listen on a free port of this machine."""
        return cls(socket.create_server(("127.0.0.1", 0)), api)

    @property
    def port(self) -> int:
        """Port of the machine; only for `on_loopback`."""
        return int(self._listener.getsockname()[1])

    def url(self, rank: int, port: int | None = None) -> str:
        """Return the tracking URI of a worker. `port`: the port in its sandbox."""
        return f"http://127.0.0.1:{port or self.port}/{self.key}/{rank}"

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        serve_each(self._listener, self._serve, self._closed, name="mlflow", at_once=_AT_ONCE)

    def _serve(self, client: socket.socket) -> None:
        from shoal.agent.mlflow.handler import Handler

        with client, suppress(OSError):
            Handler(client, self._answer)

    def _answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        import hmac

        parts = urlsplit(target)
        key, _, rest = parts.path.lstrip("/").partition("/")
        if not hmac.compare_digest(key.encode(), self.key.encode()):
            return 403, {"error_code": "PERMISSION_DENIED", "message": "This is not the tracking URI of a worker"}
        rank, _, path = rest.partition("/")
        path = f"/{path}"
        found = next((path.removeprefix(prefix) for prefix in _API if path.startswith(prefix)), None)
        if found is None or not rank.isdecimal():
            message = f"Shoal does not provide {method} {path}"
            return (200, {}) if path in ("/health", "/version") else (404, _missing(message))
        return self._api.answer(method, found, parts.query, body, rank=int(rank[:9]))


def _missing(message: str) -> dict[str, Any]:
    return {"error_code": "ENDPOINT_NOT_FOUND", "message": message}


def encode(status: int, answer: dict[str, Any]) -> tuple[int, bytes]:
    """Return status and body."""
    return status, json.dumps(answer).encode()
