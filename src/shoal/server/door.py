"""The machines' way in: a second listener, on the address by which they see this one. It serves agents, what jobs read of their own
workspace, and joining the pool; for everything else there is nothing here. The server itself stays where it was.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from pathlib import Path

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.core.agents import TOKEN_HEADER
from shoal.core.errors import NotFound, Refused
from shoal.core.loops import Problem
from shoal.core.pool import JOIN_HEADER
from shoal.server.lane import LaneProtocol

logger = logging.getLogger(__name__)
_PREFIX = "/api/v1"
_JOB_TOKEN = "bearer shoalj_"


class Door:
    """One listener per address, on a port that it keeps: the machines know it by heart."""

    def __init__(self, app: ASGIApp, ports_file: Path):
        self._app = Wicket(app)
        self._ports_file = ports_file
        self._open: dict[str, tuple[str, uvicorn.Server, threading.Thread]] = {}
        self._lock = threading.Lock()

    def open(self, address: str) -> str:
        """Its URL; opened if it is not open yet."""
        with self._lock:
            if address not in self._open:
                self._open[address] = self._listen(address)
            return self._open[address][0]

    def problem(self) -> Problem | None:
        """Return which listener has ended by itself, or None."""
        with self._lock:
            dead = [address for address, (_, _, thread) in self._open.items() if not thread.is_alive()]
        return Problem("agent listener", "dead", 0.0, f"machines cannot reach {', '.join(dead)}") if dead else None

    def close(self) -> None:
        with self._lock:
            closing, self._open = list(self._open.values()), {}
        for _, server, _ in closing:
            server.should_exit = True
        for _, _, thread in closing:
            thread.join()

    def _listen(self, address: str) -> tuple[str, uvicorn.Server, threading.Thread]:
        listener = self._bind(address)
        port = listener.getsockname()[1]
        self._ports_file.write_text(json.dumps(self._ports() | {address: port}))
        config = uvicorn.Config(
            self._app,
            http=LaneProtocol,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="door", daemon=True)
        thread.start()
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        logger.info("machines reach this server at %s", url)
        return url, server, thread

    def _bind(self, address: str) -> socket.socket:
        last = self._ports().get(address, 0)
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, last))
        except OSError as error:
            listener.close()
            raise Refused(
                f"Machines cannot reach this server: {address}:{last} cannot be listened on ({error.strerror})."
            ) from error
        listener.listen(1024)
        return listener

    def _ports(self) -> dict[str, int]:
        try:
            return dict(json.loads(self._ports_file.read_text()))
        except (OSError, ValueError):
            return {}


class Wicket:
    """Plain ASGI: lets through what machines may ask for, told by path and kind of token; who they are is found out behind it."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_for_machines(scope["path"], Headers(scope=scope)):
            await JSONResponse(NotFound("There is no such route.").to_wire(), 404)(scope, receive, send)
            return
        # The server takes only the names it knows itself by; for machines, the address they came to is one.
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
    return inner == "/health"
