"""Listener with a thread and an event loop of its own, so that a flood at the main one does not delay it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading

import uvicorn
from starlette.types import ASGIApp

from shoal.core.background_loops import Problem
from shoal.server.bulk_upload import BulkUploadProtocol
from shoal.server.write_patience import widen_threads

HANDSHAKE_S = 10.0
"""Seconds in which a TLS handshake must end."""
_BACKLOG = 1024


class Server(uvicorn.Server):
    """uvicorn's server for one listening socket, with TLS if there is a context."""

    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None = None, *, close_s: int):
        config = uvicorn.Config(
            app,
            http=BulkUploadProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=close_s,
        )
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        widen_threads()
        await super().startup([])
        loop, config = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            return BulkUploadProtocol(config, self.server_state, self.lifespan.state)

        limit = HANDSHAKE_S if self._tls else None
        self.servers = [
            await loop.create_server(
                protocol, sock=listener, ssl=self._tls, ssl_handshake_timeout=limit, backlog=_BACKLOG
            )
            for listener in sockets or []
        ]


class ListenerThread:
    """A listener of an app on an open socket, until it is closed."""

    def __init__(self, app: ASGIApp, listener: socket.socket, *, name: str, tls: ssl.SSLContext | None = None):
        self._server = Server(app, tls, close_s=2)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def problem(self) -> Problem | None:
        """Return that the listener has ended by itself, or None."""
        return None if self.is_alive else Problem(self._thread.name, "dead", 0.0, "agents here cannot report")

    def request_end(self) -> None:
        self._server.should_exit = True

    def join(self) -> None:
        self._thread.join()


def listen(host: str, *ports: int) -> socket.socket:
    """Return a listening socket at the first of these ports that is free; raise the last one's error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            listener.close()
            if port == ports[-1]:
                raise
            continue
        listener.listen(_BACKLOG)
        return listener
    raise ValueError("no ports")
