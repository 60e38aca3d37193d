"""A lease's own port on its machine, for people who can reach it there: they are brought to the SSH server in the sandbox, past the
gateway. Nothing but keys and certificates opens that, so there is nothing to guess; what is held down is how often anybody may knock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from contextlib import suppress

logger = logging.getLogger(__name__)

_BURST, _PER_S = 20.0, 2.0
"""Connections from one address: so many at once, and then so many a second; whoever is faster waits."""
_MOST_WAITING = 20
_MOST_OPEN = 64
_PIECE = 1 << 18


class Allowance:
    """Of one address."""

    def __init__(self, now: float):
        self._left, self._at = _BURST, now

    def take(self, now: float) -> float:
        """Seconds to wait before going on; more than `_MOST_WAITING` turns ahead is never."""
        self._left, self._at = min(_BURST, self._left + (now - self._at) * _PER_S), now
        if self._left <= -_MOST_WAITING:
            return float("inf")
        self._left -= 1
        return max(0.0, -self._left / _PER_S)

    def is_full(self, now: float) -> bool:
        return self._left + (now - self._at) * _PER_S >= _BURST


class Door:
    def __init__(self, path: str):
        """`path`: the SSH server's socket."""
        self._path = path
        self._server: asyncio.Server | None = None
        self._address, self._open = "", 0
        self._allowances: defaultdict[str, Allowance] = defaultdict(lambda: Allowance(time.monotonic()))

    async def open(self, address: str) -> int:
        """The port at this address of ours, the same as long as that stays the same."""
        if self._server is None or address != self._address:
            if self._server is not None:
                self._server.close()
            self._server, self._address = await asyncio.start_server(self._enter, address, 0, limit=_PIECE), address
            logger.info("whoever reaches %s needs no gateway", address)
        return int(self._server.sockets[0].getsockname()[1])

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])
        self._open += 1
        try:
            wait_s = self._wait_of(address)
            if self._open <= _MOST_OPEN and wait_s != float("inf"):
                await asyncio.sleep(wait_s)
                await _join(reader, writer, self._path)
        except OSError as error:
            logger.debug("%s: %s", address, error)
        finally:
            self._open -= 1
            writer.close()

    def _wait_of(self, address: str) -> float:
        now = time.monotonic()
        for other in [other for other, allowance in self._allowances.items() if allowance.is_full(now)]:
            del self._allowances[other]
        return self._allowances[address].take(now)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    """Until the inner side has said its last; the end of what a person sends is only passed on."""
    answers, inner = await asyncio.open_unix_connection(path, limit=_PIECE)
    sending = asyncio.ensure_future(_pass(reader, inner))
    try:
        await _pass(answers, writer)
    finally:
        sending.cancel()
        inner.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
