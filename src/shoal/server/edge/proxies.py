"""The reverse proxy in front of a server: whose headers are believed, and what they say about a request."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.core.errors import Forbidden
from shoal.server.edge.exposure import Network, is_loopback


class BehindProxy:
    """ASGI middleware that takes the person's address, the scheme and the host from the proxy's headers.

    The headers of all others are ignored. With `only`, other machines are refused: their traffic would not be encrypted.
    """

    def __init__(self, app: ASGIApp, trusted: Iterable[Network], *, only: bool):
        self._app, self._trusted, self._only = app, tuple(trusted), only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else ""
        if self._is_trusted(address):
            scope = self._forwarded(scope)
        elif self._only and not is_loopback(address):
            error = Forbidden(
                "This server is reached through its reverse proxy only.", hint="use the proxy's https:// URL"
            )
            await JSONResponse(error.to_wire(), 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _forwarded(self, scope: Scope) -> Scope:
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"):
                found[name] = found[name] + b"," + value if name in found else value
        changed: Scope = {**scope}
        if (people := found.get(b"x-forwarded-for")) is not None and (person := self._person(people.decode("latin-1"))):
            changed["client"] = (person, 0)
        proto = _last(found.get(b"x-forwarded-proto")) or ("https" if self._only else "")
        if proto in ("http", "https"):
            changed["scheme"] = proto
        if host := _last(found.get(b"x-forwarded-host")):
            rest = [(name, value) for name, value in scope["headers"] if name != b"host"]
            changed["headers"] = [*rest, (b"host", host.encode("latin-1"))]
        return changed

    def _person(self, listed: str) -> str:
        """Return the address nearest to us that is not a proxy's: everything before it may be invented."""
        for part in reversed(listed.split(",")):
            text = part.strip()
            try:
                address = str(ipaddress.ip_address(text))
            except ValueError:
                return ""
            if not self._is_trusted(address):
                return address
        return ""

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._trusted)


def _last(value: bytes | None) -> str:
    return value.decode("latin-1").rpartition(",")[2].strip() if value else ""
