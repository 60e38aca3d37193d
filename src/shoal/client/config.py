"""Choice of server, key and workspace: flags, then the environment, then the file of `shoal login`, then a private server."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal.core.errors import InvalidSpec
from shoal.core.private import write_private
from shoal.core.settings import Layout
from shoal.core.tls import PREFIX as FINGERPRINT
from shoal.core.tls import context_for, given_ca

if TYPE_CHECKING:
    import ssl

DEFAULT_WORKSPACE = "default"
_trusted: dict[str, str] = {}
"""Server → PEM text of its private CA."""
_pinned: dict[str, str] = {}
"""Server → fingerprint of its private CA, as given in its address."""


@dataclass(slots=True)
class ClientConfig:
    """The file written by `shoal login` and `shoal workspace use`."""

    url: str | None = None
    key: str | None = None
    key_id: str | None = None
    """Id of the key that `shoal login` created, so that `shoal logout` can revoke it."""
    workspace: str | None = None
    ca: str | None = None
    """PEM text of the private CA of the file's server; None: the CAs that this machine trusts."""

    @classmethod
    def load(cls, layout: Layout) -> ClientConfig:
        if layout.client_config.is_char_device():
            return cls()  # inside a job a device hides the file
        try:
            found = json.loads(layout.client_config.read_text())
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise InvalidSpec(
                f"{layout.client_config} cannot be read: {error}.", hint=f"Remove it and sign in again: {_rm(layout)}"
            ) from error
        known = cls.__slots__
        values = found if isinstance(found, dict) else {}
        return cls(**{k: v for k, v in values.items() if k in known and isinstance(v, str)})

    def save(self, layout: Layout) -> None:
        layout.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(
            layout.client_config,
            json.dumps({k: v for k, v in asdict(self).items() if v}, indent=2) + "\n",
            durable=True,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Server, key and workspace to use. Without a URL: the private server of this data directory."""

    url: str | None
    key: str | None
    workspace: str


def find_target(layout: Layout, *, url: str | None = None, workspace: str | None = None) -> Target:
    """Return the server, key and workspace to use, from the arguments, the environment and the file of `shoal login`."""
    config = ClientConfig.load(layout)
    wanted = url or os.environ.get("SHOAL_URL") or config.url
    wanted = check_url(wanted) if wanted else None
    # The file's key and workspace belong to the file's server, never to another one.
    is_ours = wanted == (check_url(config.url) if config.url else None)
    key = os.environ.get("SHOAL_API_KEY") or (config.key if is_ours else None)
    space = workspace or os.environ.get("SHOAL_WORKSPACE") or (config.workspace if is_ours else None)
    return Target(wanted, key, space or DEFAULT_WORKSPACE)


def origins(layout: Layout, *, url: str | None = None) -> tuple[str | None, str | None]:
    """Return the flag, variable or file that the server's address and the key are from; None if neither was given."""
    config = ClientConfig.load(layout)
    file = f"{layout.client_config} (shoal login)"
    address = "--url" if url else "SHOAL_URL" if os.environ.get("SHOAL_URL") else file if config.url else None
    key = "SHOAL_API_KEY" if os.environ.get("SHOAL_API_KEY") else file if config.key and address == file else None
    return address, key


def check_url(url: str) -> str:
    """Return the server's address without a trailing slash; raise InvalidSpec if it is not a valid address.

    A fingerprint after `#` names the server's private CA and is remembered for this process.
    """
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidSpec(f"{url!r} is not a server address.", hint="An address looks like http://127.0.0.1:8080")
    if "@" in parts.netloc:
        raise InvalidSpec(
            "A server address must not contain a user name or password.", hint="Sign in with: shoal login"
        )
    checked = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/api/v1")
    if parts.fragment.startswith(FINGERPRINT):
        _pinned[checked] = parts.fragment
    return checked


def trust(url: str, pem: str) -> None:
    """Let this process accept certificates of a private CA from one server; `shoal login` remembers it for later ones."""
    _trusted[check_url(url)] = pem


def trusted(url: str) -> str | None:
    """Return the private CA that `trust` named for a server, or None."""
    return _trusted.get(url)


def known_ca(url: str) -> str | None:
    """Return the PEM text of the CA for a server: given by its fingerprint, by SHOAL_CA or at sign-in; None: this machine's."""
    if url in _pinned and url not in _trusted and url.startswith("https://"):
        from shoal.client.trust import trust_by_fingerprint

        trust_by_fingerprint(url, _pinned[url])
    if found := _trusted.get(url) or given_ca():
        return found
    config = ClientConfig.load(Layout())
    return config.ca if config.ca and config.url and check_url(config.url) == url else None


def server_tls(url: str) -> ssl.SSLContext:
    """Return the TLS context for a server, which accepts certificates of its known CA, or else those of this machine's CAs."""
    return context_for(known_ca(url))


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unknown_host(error: BaseException | None) -> bool:
    """Return whether an error was caused by a host name that cannot be resolved."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


def _rm(layout: Layout) -> str:
    return f"rm {layout.client_config} && shoal login"
