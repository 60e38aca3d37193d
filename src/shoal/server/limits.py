"""Largest request bodies, enforced while they stream in, before anything is kept in memory."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import SourceTooLarge

JSON_LIMIT = 64 << 20
CHUNKS_LIMIT = 96 << 20
SEGMENT_LIMIT = 8 << 20


class BodyLimit:
    """Plain ASGI (no task per request, unlike Starlette's BaseHTTPMiddleware)."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, seen = _limit(scope["path"]), 0
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            error = SourceTooLarge(f"The request body is over the limit of {limit >> 20} MiB for this route.")
            await JSONResponse(error.to_wire(), 413)(scope, receive, send)
            return

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise SourceTooLarge(f"The request body is over the limit of {limit >> 20} MiB for this route.")
            return message

        await self.app(scope, counted, send)


def _limit(path: str) -> int:
    if path.endswith("/chunks"):
        return CHUNKS_LIMIT
    return SEGMENT_LIMIT if "/segments/" in path else JSON_LIMIT
