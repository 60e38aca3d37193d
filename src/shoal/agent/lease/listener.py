"""The direct port of a lease: people who can reach its machine connect to the SSH server in the sandbox without the gateway.

The SSH server accepts only keys and certificates, so there is no password to guess; the rate of connections is limited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from contextlib import suppress

logger = logging.getLogger(__name__)

_BURST, _PER_S = 20.0, 2.0
"""Connections from one address: the burst, and then the rate per second; faster ones have to wait."""
_MOST_WAITING = 20
_MOST_OPEN = 64
_PIECE = 1 << 18


class Allowance:
    """Rate limit of one address."""

    def __init__(self, now: float):
        self._left, self._at = _BURST, now

    def admit(self, now: float) -> float:
        """Return the seconds that a new connection must wait; infinity if `_MOST_WAITING` others wait already."""
        self._left, self._at = min(_BURST, self._left + (now - self._at) * _PER_S), now
        if self._left <= -_MOST_WAITING:
            return float("inf")
        self._left -= 1
        return max(0.0, -self._left / _PER_S)

    def is_full(self, now: float) -> bool:
        return self._left + (now - self._at) * _PER_S >= _BURST


class DirectListener:
    """Listens on a TCP port and forwards connections to the SSH server's Unix socket."""

    def __init__(self, path: str):
        """Set up without listening. `path` is the SSH server's socket."""
        self._path = path
        self._server: asyncio.Server | None = None
        self._address, self._open = "", 0
        self._allowances: defaultdict[str, Allowance] = defaultdict(lambda: Allowance(time.monotonic()))

    async def open(self, address: str) -> int:
        """Listen at this address of ours and return the port, which stays the same as long as the address does."""
        if self._server is None or address != self._address:
            if self._server is not None:
                self._server.close()
            self._server, self._address = await asyncio.start_server(self._enter, address, 0, limit=_PIECE), address
            logger.info("accepting direct SSH connections at %s", address)
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
        return self._allowances[address].admit(now)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    """Forward data both ways until the SSH server closes; the end of the person's input is only passed on."""
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
