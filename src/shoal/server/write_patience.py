"""Requests that wait for the database: for a second, then they are refused, so that they never hold all request threads.

A request may be refused only before its first write. Then nothing has happened, and the client may repeat it whatever its
method (`Busy`). Later writes of the same request, and those of background loops, wait as long as it takes.
"""

from __future__ import annotations

from contextvars import ContextVar

import anyio.to_thread
from starlette.types import ASGIApp, Receive, Scope, Send

REQUEST_THREADS = 128
"""Threads for requests. Each waits for the disk or a lock most of the time."""
MOST_WAITING = 96
"""Requests that may wait for the writer at once; the other threads are left to requests that only read."""


class Patience:
    """Patience of one request. The request's threads share it, one after the other."""

    __slots__ = ("has_written", "limit_s")

    def __init__(self, limit_s: float):
        self.limit_s, self.has_written = limit_s, False


_of_request: ContextVar[Patience | None] = ContextVar("write_patience", default=None)


def of_request() -> Patience | None:
    """Return the patience of the present request; None outside of requests, and once the request has written."""
    found = _of_request.get()
    return None if found is None or found.has_written else found


class WritePatience:
    """Middleware that gives every request its patience. Plain ASGI: routes in threads get a copy of this task's context."""

    def __init__(self, app: ASGIApp, limit_s: float):
        self._app, self._limit_s = app, limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _of_request.set(Patience(self._limit_s))
        await self._app(scope, receive, send)


def widen_threads() -> None:
    """Allow as many request threads as `REQUEST_THREADS`; call it in the event loop of the server."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = REQUEST_THREADS
