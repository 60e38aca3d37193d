"""SSRF guard: which URLs users may have the server fetch, and connections to exactly the address that was checked.

Everything fetched for a user connects through `PinnedTransport` (or, for libraries with a client of their own, through
`artifacts.imports.proxy`): the host is resolved once, all its addresses are checked, and one of them is connected to.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

from shoal.core.addresses import is_public
from shoal.core.errors import InvalidSpec, NotFound, Unreachable

Resolver = Callable[[str, int], list[str]]
"""Function (host, port) → addresses."""

PORTS = {"http": 80, "https": 443}
CONNECT_S = 10.0
_SLICE_S = 0.5
"""Seconds between two checks, while waiting, whether the server is stopping."""
_MIN_PROGRESS = 64 << 10
"""Bytes that count as progress; a host that sends fewer could occupy a thread forever."""
_ODD_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.I)


class Stopped(Exception):
    """The server is stopping; the work continues at its next start."""


def resolve_host(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        kind = Unreachable if error.errno == socket.EAI_AGAIN else NotFound
        raise kind(f"The host '{host}' cannot be found.") from None
    except (OSError, UnicodeError):
        raise NotFound(f"The host '{host}' cannot be found.") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Rules for the hosts that the server may connect to for users."""

    private: bool = False
    """True if it may reach its own machine and network (a private local server); else only public addresses."""
    trusted: frozenset[tuple[str, int]] = frozenset()
    """Pairs (host, port) configured by the operator, not by a user: allowed wherever they are."""
    resolve: Resolver = resolve_host
    allows: Callable[[str], bool] = is_public

    def parse(self, text: str) -> httpx.URL:
        """Return a parsed http(s) URL; raise if it may not be fetched, as far as that is known without resolving the host."""
        if not text.isprintable() or re.search(r"[\s\\]", text):
            raise InvalidSpec("That is not a URL: it contains spaces, backslashes or control characters.")
        try:
            url = httpx.URL(text)
            host, port = url.raw_host.decode("ascii"), url.port
        except (httpx.InvalidURL, UnicodeError, ValueError):
            raise InvalidSpec("That is not a URL. Give it like https://example.org/data.zip.") from None
        if url.scheme not in PORTS or not host:
            raise InvalidSpec(f"'{display_url(url)}' cannot be fetched: only http:// and https:// URLs can.")
        if url.userinfo:
            raise InvalidSpec("The URL contains a user name or password, which would be stored in records.")
        if port is not None and not 0 < port < 65536:
            raise InvalidSpec(f"'{display_url(url)}' has no usable port.")
        self._check_spelling(host, port or PORTS[url.scheme])
        return url.copy_with(fragment=None)

    def addresses(self, host: str, port: int) -> list[str]:
        """Return the host's addresses, resolved now, to be connected to as they are; raise if any of them is not allowed."""
        found = self.resolve(host, port)
        if not self._is_free(host, port):
            self._check_spelling(host, port)
            if not found or not all(self.allows(address) for address in found):
                raise _inside(host)
        return found

    def _is_free(self, host: str, port: int) -> bool:
        return self.private or (host, port) in self.trusted

    def _check_spelling(self, host: str, port: int) -> None:
        """Raise for addresses that are not allowed, and for unusual notations, which are only used to get past a check."""
        if self._is_free(host, port):
            return
        try:
            address = str(ipaddress.ip_address(host))
        except ValueError:
            if _ODD_NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
                raise InvalidSpec(f"The host '{host}' is an address in an unusual notation.") from None
            return
        if not self.allows(address):
            raise _inside(host)


class PinnedTransport(httpx.BaseTransport):
    """HTTP transport that connects to checked addresses only; the Host header and the TLS name stay those of the URL."""

    def __init__(self, guard: Guard, *, stall_s: float, stop: Callable[[], bool], tls: ssl.SSLContext | None = None):
        self._stall_s = stall_s
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls or _default_tls(),
            network_backend=_Backend(guard, stall_s, stop),
            max_connections=16,
            keepalive_expiry=5.0,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.read(),
            extensions={"timeout": {"connect": CONNECT_S, "read": self._stall_s, "write": self._stall_s, "pool": None}},
        )
        with _as_httpx():
            answer = self._pool.handle_request(asked)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response):
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, guard: Guard, stall_s: float, stop: Callable[[], bool]):
        self._guard, self._stall_s, self._stop = guard, stall_s, stop
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception | None = None
        for address in self._guard.addresses(host, port)[:4]:
            if self._stop():
                raise Stopped
            try:
                return _Stream(
                    self._sockets.connect_tcp(address, port, timeout=timeout, socket_options=socket_options),
                    self._stall_s,
                    self._stop,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        raise httpcore.UnsupportedProtocol("only hosts are connected to")


class _Stream(httpcore.NetworkStream):
    """Connection that stops waiting when the server stops, or when too little arrives for too long."""

    def __init__(self, inner: httpcore.NetworkStream, stall_s: float, stop: Callable[[], bool]):
        self._inner, self._stall_s, self._stop = inner, stall_s, stop
        self._waited_s, self._fresh = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            if self._stop():
                raise Stopped
            data, began = None, time.monotonic()
            try:
                data = self._inner.read(max_bytes, timeout=min(_SLICE_S, self._stall_s))
            except httpcore.ReadTimeout:
                pass
            self._waited_s += time.monotonic() - began
            if self._waited_s >= self._stall_s:
                raise httpcore.ReadTimeout(f"too little arrived in {self._stall_s:g} seconds")
            if data is None:
                continue
            self._fresh += len(data)
            if self._fresh >= _MIN_PROGRESS:
                self._waited_s, self._fresh = 0.0, 0
            return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._waited_s, self._fresh = 0.0, 0  # a new request
        self._inner.write(buffer, timeout=timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._stall_s, self._stop)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def display_url(url: httpx.URL) -> str:
    """Return a URL for messages and records, without its query, which can contain signatures, and without credentials."""
    return str(url.copy_with(query=None, fragment=None, username=None, password=None))


@functools.cache
def _default_tls() -> ssl.SSLContext:
    """Return the TLS context; cached, as reading all root certificates takes a tenth of a second."""
    return httpx.create_ssl_context()


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except httpcore.TimeoutException as error:
        raise httpx.TimeoutException(str(error)) from error
    except httpcore.NetworkError as error:
        raise httpx.NetworkError(str(error)) from error
    except (httpcore.ProtocolError, httpcore.ProxyError, httpcore.UnsupportedProtocol) as error:
        raise httpx.ProtocolError(str(error)) from error


def _inside(host: str) -> InvalidSpec:
    return InvalidSpec(f"The host '{host}' is inside a private network; this server does not fetch from there.")
