"""Fast path for large request bodies: read from the socket into reused memory. The client's side is `client._bulk_upload`.

uvicorn reads the head of a request and the bytes that arrived with it. The rest of the body is read past uvicorn's parser,
which copies each byte five times; a new parser starts after the body. TLS, and clients that wait for "100 Continue", use
uvicorn.

Why it is kept, although it subclasses classes of uvicorn that are not public: receiving takes four to six times less processor
time (28 instead of 171 ms per 100 MB; `bench/store_receive.py`, also in `bench/store.py --http`, which asks for 1.5 times), and a
whole push, with hashing and writing to disk, 1.3 times less of the server's and two thirds of the time. pyproject.toml allows
only the uvicorn versions this was tested with; for a new one run tests/unit/server/test_bulk_upload.py, then widen the range.

Why no byte is lost, read twice or overwritten:
- Everything runs in the event loop's thread, so there are no locks. `BodyReader.fill` pauses uvicorn's reading first, and takes the
  bytes that uvicorn has already read (`cycle.body`); all later ones wait in the kernel for `_receive`, the only reader.
- It reads from a duplicate of the file descriptor, because asyncio does not allow a second reader on a transport's own.
- It reads exactly the announced length, so the next byte belongs to the next request. If it ends early (the client is gone,
  or the handler was cancelled) nobody knows where the next request starts, so the connection is not kept alive.
- The memory returns to `_BODIES` only when the last view of it is released, so a slow handler's body is never overwritten.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import httptools
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from shoal.server.edge.connections import LimitedProtocol
from shoal.store.hashing import Data
from shoal.store.io.buffers import Buffers

_EXTENSION: Final = "shoal.body_reader"
_BODIES = Buffers(26 << 20, keep=3)
"""Reused memory for bodies; each buffer is a little larger than the largest body that Shoal's client sends."""
_SILENCE_S = 120.0
"""Seconds without a byte after which the rest of a body is given up."""
_AT_ONCE = 1 << 20
"""Most bytes read before other connections of the event loop get their turn."""


async def received(request: Request) -> Data:
    """Return the body of a request; in reused memory if its length is announced."""
    length = request.headers.get("content-length", "")
    if not length.isdigit():
        return await request.body()
    room = _BODIES.lend(int(length))
    reader: BodyReader | None = request.scope.get("extensions", {}).get(_EXTENSION, {}).get("reader")
    if await (reader.fill(room) if reader else _gather(request, room)) < len(room):
        raise ClientDisconnect
    return room


class GroupsResponse(StreamingResponse):
    """Response in groups of pieces, which are sent without joining them: that would cost more than sending."""

    def __init__(self, groups: Iterable[Sequence[Data]], *, media_type: str, headers: Mapping[str, str] | None = None):
        super().__init__((), media_type=media_type, headers=headers)
        self._groups = iterate_in_threadpool(groups)

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for group in self._groups:
            for piece in group:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class BulkUploadProtocol(LimitedProtocol):
    """HTTP protocol for uvicorn's option `http` that adds a `BodyReader` to each request."""

    def on_headers_complete(self) -> None:
        if self.scheme != "http" or self.expect_100_continue:
            super().on_headers_complete()
            return
        reader = BodyReader(self)
        self.scope["extensions"] = {_EXTENSION: {"reader": reader}}
        super().on_headers_complete()
        reader.cycle = self.cycle

    def skip_body(self) -> None:
        """Start a new parser: the body was read elsewhere, and the next byte belongs to a new request."""
        self.parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # httptools before 0.6.3
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.on_message_complete()


class BodyReader:
    """Reader of one request's body, past uvicorn's parser."""

    cycle: RequestResponseCycle

    def __init__(self, protocol: BulkUploadProtocol):
        self._protocol = protocol

    async def fill(self, room: memoryview) -> int:
        """Read a body of exactly that length; return how many bytes arrived, fewer if the client disconnected."""
        protocol, cycle = self._protocol, self.cycle
        if protocol.transport.is_closing():
            return 0
        protocol.flow.pause_reading()
        have = len(cycle.body)
        room[:have] = cycle.body
        cycle.body = type(cycle.body)()
        if not cycle.more_body:
            return have
        with socket.socket(fileno=os.dup(protocol.transport.get_extra_info("socket").fileno())) as line:
            line.setblocking(False)
            try:
                have += await _receive(line, room[have:])
            finally:
                if have == len(room):
                    protocol.skip_body()
                else:  # it is unknown where the next request begins
                    cycle.keep_alive = False
        return have


async def _receive(line: socket.socket, room: memoryview) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    have = 0

    def receive() -> None:
        nonlocal have
        try:
            done = line.recv_into(room[have : have + _AT_ONCE])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            done = 0
        have += done
        if not (done and have < len(room)) and not ended.done():
            ended.set_result(None)

    loop.add_reader(line, receive)
    try:
        while True:
            before = have
            try:
                await asyncio.wait_for(asyncio.shield(ended), _SILENCE_S)
            except TimeoutError:
                if have > before:
                    continue
            break
    finally:
        loop.remove_reader(line)
    return have


async def _gather(request: Request, room: memoryview) -> int:
    have = 0
    async for piece in request.stream():
        room[have : have + len(piece)] = piece
        have += len(piece)
    return have
