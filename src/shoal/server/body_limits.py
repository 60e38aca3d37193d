"""Limits of request bodies, enforced while they stream in, before anything is kept in memory.

A stranger may send 64 KiB: enough for a sign-in, too little to fill the memory. Senders of more are authenticated first; the
route's policy then decides what they may do.
"""

from __future__ import annotations

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import NotSignedIn, ShoalError, SourceTooLarge
from shoal.server.policy import is_known

STRANGERS_LIMIT = 64 << 10
JSON_LIMIT = 64 << 20
CHUNKS_LIMIT = 96 << 20
SEGMENT_LIMIT = 8 << 20


class BodyLimit:
    """Middleware that refuses bodies over the limit. Plain ASGI: no task per request, unlike Starlette's BaseHTTPMiddleware."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, seen, known = _limit(scope["path"]), 0, False
        declared = Headers(scope=scope).get("content-length", "0")

        async def problem(size: int) -> ShoalError | None:
            nonlocal known
            if size > STRANGERS_LIMIT and not known:
                known = await run_in_threadpool(is_known, scope["app"].state.context, HTTPConnection(scope))
                if not known:
                    return NotSignedIn(
                        f"Sign in first: without a valid key a request may have {STRANGERS_LIMIT >> 10} KiB."
                    )
            if size > limit:
                return SourceTooLarge(f"The request body is over the limit of {limit >> 20} MiB for this route.")
            return None

        if declared.isdigit() and (error := await problem(int(declared))):
            # The rest of the body is not read, so the connection cannot carry another request.
            await JSONResponse(error.to_wire(), error.http_status, headers={"Connection": "close"})(
                scope, receive, send
            )
            return

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if error := await problem(seen):
                raise HTTPException(
                    error.http_status, error.message
                )  # FastAPI takes any other error for a damaged body
            return message

        await self.app(scope, counted, send)


def _limit(path: str) -> int:
    if path.endswith("/chunks"):
        return CHUNKS_LIMIT
    return SEGMENT_LIMIT if "/segments/" in path else JSON_LIMIT
