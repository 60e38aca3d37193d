"""Routes: authorise, one service call, return. No SQL here."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

_LARGE_JSON = 64 << 10
_parsing = threading.BoundedSemaphore(2)
"""Large JSON bodies that are parsed at once: few, because a parsed body needs many times its size."""
PREFIX = "/api/v1"


def api_router(prefix: str = "", *, tags: list[str]) -> APIRouter:
    """Return a router for one part of the API; its routes start with `/api/v1` and `prefix`."""
    return APIRouter(prefix=PREFIX + prefix, tags=list(tags), route_class=_Route)


class _Route(APIRoute):
    """Route that does not parse large JSON bodies in the event loop, where everyone else would wait for it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


class _Request(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) <= _LARGE_JSON:
                return await super().json()
            self._json = await run_in_threadpool(_parse, body)
        return self._json


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Add the routes of routers to an app directly.

    `FastAPI.include_router` adds each router as one route that tries its own routes in turn, and builds them a second time.
    With two hundred routes, finding the right one then takes longer than most requests.
    """
    for router in routers:
        app.router.routes.extend(router.routes)


def _parse(body: bytes) -> Any:
    with _parsing:
        return json.loads(body)
