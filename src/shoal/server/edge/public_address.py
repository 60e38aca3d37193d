"""Address at which people on other machines reach this server, for the links that it makes."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
from starlette.requests import Request

from shoal.core.server_address import ServerAddress
from shoal.core.settings import ServerSettings
from shoal.server.edge.exposure import is_loopback, url_of

if TYPE_CHECKING:
    from shoal.server.context import Context

_ANY = ("0.0.0.0", "::")  # noqa: S104
_SOMEWHERE = "192.0.2.1"
"""Address that is never assigned; the route to it shows this machine's usual address."""


def public_host(settings: ServerSettings) -> str:
    """Return the host in the server's URL: its name, else the address it listens on, else that of this machine."""
    named = [name.strip() for name in settings.hosts.split(",") if name.strip()]
    if settings.host not in _ANY:
        return settings.host
    return named[0] if named else _own_address()


def address_of(ctx: Context, request: Request) -> ServerAddress:
    """Return the server's address as the sender of a request uses it; that of others, if the sender is on this machine."""
    url = str(request.base_url).rstrip("/")
    if not ctx.private and ctx.public_url and is_loopback(request.base_url.hostname or ""):
        url = ctx.public_url
    is_own = ctx.tls is not None and not ctx.settings.behind_proxy and url.startswith("https://")
    return ServerAddress(url=url, ca_fingerprint=ctx.tls.fingerprint if ctx.tls is not None and is_own else None)


def mailed_url(ctx: Context) -> str:
    """Return the server's URL for links in mails. It never comes from a request, whose sender could name any host."""
    named = [name.strip() for name in ctx.settings.hosts.split(",") if name.strip()]
    if ctx.settings.behind_proxy and named:
        return f"https://{named[0]}"
    url = ctx.public_url.rstrip("/")
    port = urlsplit(url).port
    return url_of("https" if ctx.tls else urlsplit(url).scheme, named[0], port) if named and port else url


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_SOMEWHERE, 9))
            return str(probe.getsockname()[0])
        except OSError:  # without a default route
            pass
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not ipaddress.ip_address(one.address).is_loopback:
                return one.address
    return "127.0.0.1"
