"""Person, key and address behind the present request. The audit log records them with each change.

The middleware creates one `Actor` per request, and the policy fills in the person. Routes run in threads with a copy of the
request's context, so all of them share this object. `Database.write` passes it on to the writer thread.
"""

from __future__ import annotations

import getpass
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.core.ids import new_id


@dataclass(slots=True)
class Actor:
    """Person or program that causes changes."""

    name: str = ""
    """E-mail address; empty before the request is authorised."""
    key_id: str = ""
    address: str = ""
    request: str = ""


SERVER = Actor(name="server")
"""The server itself: its background loops, and its start."""
_of_request: ContextVar[Actor | None] = ContextVar("actor", default=None)


def current() -> Actor:
    """Return the actor of the present request; the server itself outside of requests."""
    return _of_request.get() or SERVER


def identified(name: str, key_id: str) -> None:
    """Note who sent the present request."""
    if (actor := _of_request.get()) is not None:
        actor.name, actor.key_id = name, key_id


def local_user() -> Actor:
    """Return the actor of a command that works on the data directory without the server."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = "unknown"
    return Actor(name=f"local:{name}")


class ActorOfRequest:
    """Middleware that gives every request its actor. Plain ASGI: routes in threads get a copy of this task's context."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            client = scope.get("client")
            _of_request.set(Actor(address=client[0] if client else "", request=new_id("req")))
        await self._app(scope, receive, send)
