"""Listener for machines of the pool: a second one beside the server's own, on an address that the machines can reach.

It speaks TLS with a certificate of the server's private CA, which launch files and join commands name. Machines and
agents from before it did keep their http:// URL, whose port is then opened too. It serves agents, jobs that read from their own workspace, and joining the pool; every other route answers 404.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.core.agents import TOKEN_HEADER
from shoal.core.background_loops import Problem
from shoal.core.errors import NotFound, Refused
from shoal.core.pool import JOIN_HEADER
from shoal.server.edge.exposure import url_of
from shoal.server.edge.listener import ListenerThread, listen

logger = logging.getLogger(__name__)
_PREFIX = "/api/v1"
_JOB_TOKEN = "bearer shoalj_"


class AgentListener:
    """One listener per address. Each keeps its port, also across restarts, because the machines store it."""

    def __init__(self, app: ASGIApp, ports_file: Path, tls: Callable[[], ssl.SSLContext]):
        """Prepare listeners. `tls` is called for each one, as this machine may have got another address."""
        self._app, self._tls = MachineRoutes(app), tls
        self._ports_file = ports_file
        self._open: dict[str, tuple[str, ListenerThread]] = {}
        self._lock = threading.Lock()

    def open(self, address: str, *, clear: bool = False) -> str:
        """Return the URL of the listener at an address; open it if it is not open yet. `clear`: without TLS."""
        key = address if clear else f"tls {address}"
        with self._lock:
            if key not in self._open:
                self._open[key] = self._listen(key, address, clear=clear)
            return self._open[key][0]

    def has(self, url: str) -> bool:
        """Return whether this is the URL of an open listener."""
        with self._lock:
            return any(known == url for known, _ in self._open.values())

    def open_before_tls(self) -> None:
        """Open the ports without TLS again that a server of an earlier version had, for agents that still use them."""
        for address in self._ports():
            if not address.startswith("tls "):
                self.open(address, clear=True)

    def problem(self) -> Problem | None:
        """Return which listener has ended by itself, or None."""
        with self._lock:
            dead = [address for address, (_, listener) in self._open.items() if not listener.is_alive]
        return Problem("agent listener", "dead", 0.0, f"machines cannot reach {', '.join(dead)}") if dead else None

    def close(self) -> None:
        with self._lock:
            closing, self._open = list(self._open.values()), {}
        for _, listener in closing:
            listener.request_end()
        for _, listener in closing:
            listener.join()

    def _listen(self, key: str, address: str, *, clear: bool) -> tuple[str, ListenerThread]:
        last = self._ports().get(key, 0)
        try:
            listener = listen(address, last)
        except OSError as error:
            raise Refused(
                f"Machines cannot reach this server: {address}:{last} cannot be listened on ({error.strerror})."
            ) from error
        port = listener.getsockname()[1]
        self._ports_file.write_text(json.dumps(self._ports() | {key: port}))
        url = url_of("http" if clear else "https", address, port)
        thread = ListenerThread(self._app, listener, name="agent listener", tls=None if clear else self._tls())
        logger.info("machines reach this server at %s", url)
        return url, thread

    def _ports(self) -> dict[str, int]:
        try:
            return dict(json.loads(self._ports_file.read_text()))
        except (OSError, ValueError):
            return {}


class MachineRoutes:
    """ASGI filter that passes only routes for machines, by path and kind of token; the app itself then checks the token."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_for_machines(scope["path"], Headers(scope=scope)):
            await JSONResponse(NotFound("There is no such route.").to_wire(), 404)(scope, receive, send)
            return
        # The server accepts only its own host names; the address that machines connect to counts as one of them.
        headers = [(k, v) for k, v in scope["headers"] if k != b"host"] + [(b"host", b"127.0.0.1")]
        await self._app({**scope, "headers": headers}, receive, send)


def is_for_machines(path: str, headers: Headers) -> bool:
    inner = path.removeprefix(_PREFIX) if path.startswith(f"{_PREFIX}/") else ""
    if inner.startswith("/agent/"):
        return TOKEN_HEADER in headers
    if inner.startswith("/pool/join/"):
        return inner == "/pool/join/script" or JOIN_HEADER in headers
    if inner.startswith("/workspaces/"):
        return headers.get("authorization", "").lower().startswith(_JOB_TOKEN)
    return inner in ("/health", "/health/live", "/health/ready")
