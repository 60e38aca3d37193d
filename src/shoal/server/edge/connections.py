"""Limits of HTTP connections, before anything of a request reaches the app: number, size of the header, and pace.

A connection belongs to a stranger until one of its requests has been authenticated. Strangers may have a limited number of
connections, per address and in total; everyone must send a whole header in time, and bodies and answers must move.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import threading
from collections import Counter
from typing import Any

import httptools
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shoal.core.addresses import network_of
from shoal.core.errors import Busy, ShoalError, UsageError

EXTENSION = "shoal.edge"
MOST_HEAD_BYTES = 64 << 10
MOST_HEADERS = 100
MOST_RANGES = 100
MOST_PIPELINED = 32
"""Requests of one connection that may wait for the answer to an earlier one."""


class Strangers:
    """Number of connections on which nobody has signed in yet, by address. All listeners of a process share it."""

    def __init__(self, *, per_address: int = 256, total: int = 4096):
        self.per_address, self.total = per_address, total
        self.exempt: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
        """Networks of the reverse proxy, which has the connections of many people."""
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if there are too many."""
        key = network_of(address)
        with self._lock:
            most = self.total if self._is_exempt(address) else self.per_address
            if self._open[key] >= most or self._open.total() >= self.total:
                return False
            self._open[key] += 1
        return True

    def release(self, address: str) -> None:
        key = network_of(address)
        with self._lock:
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]

    def _is_exempt(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.exempt)


STRANGERS = Strangers()


def authenticated(connection: HTTPConnection) -> None:
    """Note that the sender of a request is known: the connection no longer counts among those of strangers."""
    if (edge := connection.scope.get("extensions", {}).get(EXTENSION)) is not None:
        edge["protocol"].known()


class LimitedProtocol(HttpToolsProtocol):
    """HTTP protocol of uvicorn with these limits."""

    HEAD_S = 15.0
    """Seconds in which a header must arrive."""
    PACE_S = 30.0
    """Seconds in which at least `LEAST_BYTES` of a body, or of an answer, must move."""
    LEAST_BYTES = 2048
    strangers = STRANGERS

    _timer: asyncio.TimerHandle | None = None
    _counted = False
    _head_bytes = 0
    _in_head = True
    _got = 0
    _unsent: int | None = None
    _problem: tuple[int, ShoalError] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._counted = self.strangers.admit(self._address)
        if not self._counted:
            self._refuse(503, Busy("Too many connections from this address. Try again shortly."))
            return
        self._timer = self.loop.call_later(self.HEAD_S, self._check_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def known(self) -> None:
        """Take the connection off the strangers' count. May be called from any thread."""
        self.loop.call_soon_threadsafe(self._release)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._got += len(data)
        if self._in_head:
            if not self._head_bytes and self._timer is None:
                self._timer = self.loop.call_later(self.HEAD_S, self._check_head)
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no route of Shoal speaks another protocol: the request is answered like any other
        except httptools.HttpParserError:
            self._refuse(*(self._problem or (400, UsageError("This is not a valid HTTP request."))))
            return
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(431, UsageError(_TOO_LARGE))

    def _should_upgrade_to_ws(self) -> bool:
        return False

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MOST_HEADERS:
            self._problem = (431, UsageError(f"The request has more than {MOST_HEADERS} headers."))
            raise ValueError
        if name.lower() == b"range" and value.count(b",") >= MOST_RANGES:
            return  # a server may ignore ranges
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MOST_HEAD_BYTES:
            self._problem = (431, UsageError(_TOO_LARGE))
            raise ValueError
        if len(self.pipeline) >= MOST_PIPELINED:
            self._problem = (429, UsageError("Too many requests wait on this connection."))
            raise ValueError
        self._in_head, self._head_bytes = False, 0
        extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
        extensions[EXTENSION] = {"protocol": self}
        if self._timer is not None:
            self._timer.cancel()
        self._got, self._unsent = 0, None
        self._timer = self.loop.call_later(self.PACE_S, self._check_pace)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A request that waits its turn has a whole header; after the last one the timer starts with the next byte.
        if self._timer is not None and self.cycle.response_complete:
            self._timer.cancel()
            self._timer = None
            if self._in_head and self._head_bytes:
                self._timer = self.loop.call_later(self.HEAD_S, self._check_head)

    def _check_head(self) -> None:
        self._timer = None
        self._refuse(408, UsageError("The request's header did not arrive in time."))

    def _check_pace(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.cycle is None or self.cycle.response_complete:
            return
        unsent = self.transport.get_write_buffer_size() if self.flow.write_paused else None
        if self.cycle.more_body and not self.flow.read_paused and self._got < self.LEAST_BYTES:
            self._give_up()
            return
        if unsent is not None and self._unsent is not None and self._unsent - unsent < self.LEAST_BYTES:
            self._give_up()
            return
        self._got, self._unsent = 0, unsent
        self._timer = self.loop.call_later(self.PACE_S, self._check_pace)

    def _give_up(self) -> None:
        """Close a connection whose other end has stopped: the app sees that the client is gone."""
        self.transport.abort()

    def _refuse(self, status: int, error: ShoalError) -> None:
        """Answer without the app, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # an answer is under way, and another one must not be mixed into it
            return
        body = json.dumps(error.to_wire()).encode()
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        self.transport.close()

    def _release(self) -> None:
        if self._counted:
            self._counted = False
            self.strangers.release(self._address)


_TOO_LARGE = f"The request's header is larger than {MOST_HEAD_BYTES >> 10} KiB."
