"""Large bodies straight from the socket, into memory that is used again: the other end of `client._lane`.

uvicorn reads a request's head and whatever came with it. The rest of a body is read past its parser, which copies each byte five
times, and a new parser takes over behind it. TLS, and whoever waits for "100 Continue", stay with uvicorn.
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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shoal.store.buffers import Buffers
from shoal.store.hashing import Data

_EXTENSION: Final = "shoal.lane"
_BODIES = Buffers(26 << 20, keep=3)
"""Somewhat more than what our own client sends at once."""
_AT_ONCE = 1 << 20
"""Bytes taken before others get their turn."""


async def received(request: Request) -> Data:
    """The body, in memory that is used again where its length is told."""
    told = request.headers.get("content-length", "")
    if not told.isdigit():
        return await request.body()
    room = _BODIES.lend(int(told))
    lane: Lane | None = request.scope.get("extensions", {}).get(_EXTENSION, {}).get("lane")
    if await (lane.fill(room) if lane else _gather(request, room)) < len(room):
        raise ClientDisconnect
    return room


class GroupsResponse(StreamingResponse):
    """An answer in groups of pieces, sent as they are: putting them together costs more than sending them."""

    def __init__(self, groups: Iterable[Sequence[Data]], *, media_type: str, headers: Mapping[str, str] | None = None):
        super().__init__((), media_type=media_type, headers=headers)
        self._groups = iterate_in_threadpool(groups)

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for group in self._groups:
            for piece in group:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LaneProtocol(HttpToolsProtocol):
    """For uvicorn's `http`."""

    def on_headers_complete(self) -> None:
        if self.scheme != "http" or self.expect_100_continue:
            super().on_headers_complete()
            return
        lane = Lane(self)
        self.scope["extensions"] = {_EXTENSION: {"lane": lane}}
        super().on_headers_complete()
        lane.cycle = self.cycle

    def skip_body(self) -> None:
        """What comes next is a new request."""
        self.parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # httptools before 0.6.3
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.on_message_complete()


class Lane:
    """The body of one request."""

    cycle: RequestResponseCycle

    def __init__(self, protocol: LaneProtocol):
        self._protocol = protocol

    async def fill(self, room: memoryview) -> int:
        """Read a body of just that length; returns how much came before the other side was gone."""
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
                else:  # nobody could tell where the next request begins
                    cycle.keep_alive = False
        return have


async def _receive(line: socket.socket, room: memoryview) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    have = 0

    def take() -> None:
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

    loop.add_reader(line, take)
    try:
        await ended
    finally:
        loop.remove_reader(line)
    return have


async def _gather(request: Request, room: memoryview) -> int:
    have = 0
    async for piece in request.stream():
        room[have : have + len(piece)] = piece
        have += len(piece)
    return have
