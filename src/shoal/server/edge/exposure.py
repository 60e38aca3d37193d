"""Check of the address a server listens on: in clear text it is loopback, unless an admin says that this is meant."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TypeAlias

from shoal.core.errors import Refused
from shoal.core.settings import ServerSettings

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOOPBACK = ("127.0.0.0/8", "::1/128")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_private(settings: ServerSettings) -> bool:
    """Return whether a server is its owner's alone: on loopback, without a proxy, and not declared as shared."""
    return is_loopback(settings.host) and not settings.shared and not settings.behind_proxy


def check(settings: ServerSettings) -> None:
    """Raise Refused if people would send passwords and keys to this server in clear text over a network."""
    if settings.tls_key and not settings.tls_cert:
        raise Refused("tls_key is set, but tls_cert is not.", hint="shoal server start --tls-cert FILE --tls-key FILE")
    for file in (settings.tls_cert, settings.tls_key):
        if file not in ("", "auto") and not Path(file).expanduser().is_file():
            raise Refused(
                f"The TLS file {file} does not exist.", hint="--tls-cert FILE --tls-key FILE, or --tls-cert auto"
            )
    proxies(settings)
    if is_loopback(settings.host) or settings.tls_cert or settings.behind_proxy or settings.allow_clear_text:
        return
    again = f"shoal server start --host {settings.host}"
    raise Refused(
        f"The server would listen on {settings.host} without encryption: others on the network could read passwords and keys.",
        hint=f"{again} --tls-cert auto (or --tls-cert FILE --tls-key FILE; --behind-proxy ADDRESS for a reverse proxy; "
        "--allow-clear-text to listen without encryption)",
    )


def proxies(settings: ServerSettings) -> tuple[Network, ...]:
    """Return the networks whose forwarded headers are believed.

    A shared server on loopback has a proxy on the same machine; that is how servers of 0.1 were put behind one.
    """
    named = [part.strip() for part in settings.behind_proxy.split(",") if part.strip()]
    if not named and settings.shared and is_loopback(settings.host):
        named = list(_LOOPBACK)
    try:
        return tuple(ipaddress.ip_network(name, strict=False) for name in named)
    except ValueError:
        raise Refused(
            f"behind_proxy: {settings.behind_proxy!r} is not an address.", hint="--behind-proxy 10.0.0.2"
        ) from None


def url_of(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
