"""Proxy between a browser and the JupyterLab of a job.

Every request is authorised again; its cookies are removed, and the token of the job's JupyterLab is added.
Responses are written by the job's users. They may not set cookies, be cached by the browser or install a service worker,
because the same port, and so the same origin, may belong to another job tomorrow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import asyncssh
import h11
from starlette.datastructures import Headers

from shoal.server.jupyter.ports import Guest, Lab
from shoal.server.jupyter.service import may_still
from shoal.server.web.host_check import hostname, refuse_host

ENTER = "/_shoal/enter/"
_COOKIE = "shoal_jupyter"
_CHUNK = 64 << 10
_IDLE_S = 60.0
_RECHECK_S = 5.0
"""Seconds between two checks whether the person of an open connection still has access."""
_MOST_VISITS = 256
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect"})
_NOT_SENT = _HOP | {b"host", b"origin", b"referer", b"cookie", b"authorization", b"proxy-authorization", b"forwarded"}
_NOT_RETURNED = _HOP | {
    b"set-cookie", b"cache-control", b"expires", b"pragma", b"clear-site-data", b"service-worker-allowed", b"alt-svc",
    b"strict-transport-security", b"public-key-pins", b"www-authenticate",
}  # fmt: skip
_ADDED = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NOTHING = "Not found. Open JupyterLab from its job's page in the console.\n"
Pairs = Iterable[tuple[bytes, bytes]]


class Refusal(NamedTuple):
    """Response of the proxy itself: an error, or the redirect after `_enter`."""

    status: int
    text: str


class Reader(Protocol):
    async def read(self, n: int = -1, /) -> bytes: ...


async def visit(lab: Lab, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    task = asyncio.current_task()
    if task is None or len(lab.visits) >= _MOST_VISITS:
        writer.close()
        return
    lab.visits.add(task)
    try:
        with suppress(OSError, asyncssh.Error, h11.ProtocolError, TimeoutError):
            await _Visit(lab, reader, writer).serve()
    finally:
        lab.visits.discard(task)
        writer.close()


def refusal(lab: Lab, request: h11.Request) -> Refusal | None:
    """Return the error for a request whose headers show a wrong host, another site's page or a service worker; else None."""
    headers = Headers(raw=list(request.headers))
    own = urlsplit(lab.ctx.settings.jupyter_url.replace("{port}", str(lab.port))).hostname
    if refuse_host(lab.ctx, headers) and (not own or hostname(headers.get("host", "")) != own):
        return Refusal(403, "This server is not known by that host name.\n")
    if not request.target.startswith(b"/"):
        return Refusal(400, "Only paths are served.\n")
    if "service-worker" in headers:
        return Refusal(403, "Service workers are not served here: they would outlast the job.\n")
    origin, is_change = headers.get("origin"), request.method not in _SAFE or "upgrade" in headers
    # Only browsers send an origin. A change without one is refused: no browser would send it like that.
    is_foreign = is_change if origin is None else urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    site, mode = headers.get("sec-fetch-site", "same-origin"), headers.get("sec-fetch-mode")
    if is_foreign or (site in ("same-site", "cross-site") and (is_change or mode != "navigate")):
        return Refusal(403, "This request came from another site's page.\n")
    return None


class _Visit:
    def __init__(self, lab: Lab, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._lab, self._reader, self._writer = lab, reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_CHUNK)

    async def serve(self) -> None:
        """Serve requests one after the other, until one is refused or either side closes the connection."""
        while True:
            try:
                async with asyncio.timeout(_IDLE_S):
                    request = await _event(self._http, self._reader)
            except h11.RemoteProtocolError as error:
                await self._respond(Refusal(error.error_status_hint, "This is not a valid HTTP request.\n"))
                return
            if not isinstance(request, h11.Request):
                return
            if problem := refusal(self._lab, request):
                await self._respond(problem)
                return
            if request.target.startswith(ENTER.encode()):
                await self._enter(request)
                return
            guest = self._lab.guest(self._cookie(request))
            if guest is None or not await self._may(guest):
                await self._respond(Refusal(404, _NOTHING))
                return
            await self._while_allowed(guest, self._pass_on(request))
            if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
                return
            self._http.start_next_cycle()

    async def _may(self, guest: Guest) -> bool:
        return await asyncio.to_thread(may_still, self._lab.ctx, guest)

    async def _while_allowed(self, guest: Guest, work: Awaitable[None]) -> None:
        running = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([running], timeout=_RECHECK_S))[0]:
                if not await self._may(guest):
                    raise ConnectionAbortedError
            running.result()
        finally:
            running.cancel()

    async def _enter(self, request: h11.Request) -> None:
        code = request.target.decode().removeprefix(ENTER)
        token = self._lab.admit(code) if request.method == b"GET" else None
        if token is None:
            await self._respond(Refusal(404, _NOTHING))
            return
        secure = "; Secure" if self._cookie_name.startswith("__Host-") else ""
        cookie = f"{self._cookie_name}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"
        await self._respond(Refusal(303, ""), [(b"location", b"/lab"), (b"set-cookie", cookie.encode())])

    async def _pass_on(self, request: h11.Request) -> None:
        try:
            reader, writer = await self._lab.dial()
        except (OSError, asyncssh.Error):
            await self._respond(Refusal(502, "JupyterLab does not answer. Open it again from its job's page.\n"))
            if self._lab.ctx.gateway.is_connected(self._lab.endpoint.id):
                self._lab.ctx.labs.forget(self._lab)
            return
        try:
            await self._exchange(request, reader, writer)
        finally:
            writer.close()

    async def _exchange(self, request: h11.Request, reader: Reader, writer: Any) -> None:
        inner = h11.Connection(h11.CLIENT)
        writer.write(inner.send(h11.Request(method=request.method, target=request.target, headers=self._sent(request))))
        while not isinstance(part := await _event(self._http, self._reader, self._writer), h11.EndOfMessage):
            writer.write(inner.send(part))
            await writer.drain()
        writer.write(inner.send(part) or b"")
        while True:
            answer = await _event(inner, reader)
            if isinstance(answer, h11.InformationalResponse) and answer.status_code != 101:
                continue
            if isinstance(answer, h11.Response | h11.InformationalResponse):
                kind, headers = type(answer), [*_without(answer.headers, _NOT_RETURNED), *_ADDED]
                if answer.status_code == 101:
                    headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
                answer = kind(status_code=answer.status_code, reason=answer.reason, headers=headers)
            elif not isinstance(answer, h11.Data | h11.EndOfMessage):
                return
            self._writer.write(self._http.send(answer) or b"")
            await self._writer.drain()
            if isinstance(answer, h11.InformationalResponse):
                await self._join(inner, reader, writer)
                return
            if isinstance(answer, h11.EndOfMessage):
                return

    async def _join(self, inner: h11.Connection, reader: Reader, writer: Any) -> None:
        """Copy bytes in both directions until one side ends (WebSockets)."""
        self._writer.write(inner.trailing_data[0])
        writer.write(self._http.trailing_data[0])
        ways = [asyncio.ensure_future(_copy(self._reader, writer)), asyncio.ensure_future(_copy(reader, self._writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def _sent(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        kept = _without(request.headers, _NOT_SENT)
        is_upgrade = any(name == b"upgrade" for name, _ in request.headers)
        hop = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if is_upgrade else [(b"connection", b"close")]
        return [(b"host", b"localhost"), (b"authorization", f"token {self._lab.token}".encode()), *hop, *kept]

    async def _respond(self, what: Refusal, more: Pairs = ()) -> None:
        """Send a response of the proxy itself and mark the connection to be closed."""
        body = what.text.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
        ]  # fmt: skip
        answer = h11.Response(status_code=what.status, headers=[*headers, *_ADDED, *more])
        parts = [self._http.send(event) or b"" for event in (answer, h11.Data(data=body), h11.EndOfMessage())]
        self._writer.write(b"".join(parts))
        await self._writer.drain()

    def _cookie(self, request: h11.Request) -> str:
        lines = [value.decode("latin-1") for name, value in request.headers if name == b"cookie"]
        pairs = (pair.strip().partition("=") for line in lines for pair in line.split(";"))
        return next((value for name, _, value in pairs if name == self._cookie_name), "")

    @property
    def _cookie_name(self) -> str:
        is_secure = self._lab.ctx.settings.jupyter_url.startswith("https:")
        return f"{'__Host-' if is_secure else ''}{_COOKIE}_{self._lab.port}"


def _without(headers: Pairs, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in headers
        if name not in names and not name.startswith((b"access-control-", b"x-forwarded-"))
    ]


async def _event(http: h11.Connection, reader: Reader, writer: asyncio.StreamWriter | None = None) -> Any:
    while (event := http.next_event()) is h11.NEED_DATA:
        if writer is not None and http.they_are_waiting_for_100_continue:
            writer.write(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        http.receive_data(await reader.read(_CHUNK))
    return event


async def _copy(reader: Reader, writer: Any) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
