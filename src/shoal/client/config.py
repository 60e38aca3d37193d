"""Which server, key and workspace to use: flags, then the environment, then `shoal login`'s file, then a private server."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from shoal.core.errors import InvalidSpec
from shoal.core.private import write_private
from shoal.core.settings import Layout

DEFAULT_WORKSPACE = "default"


@dataclass(slots=True)
class ClientConfig:
    """What `shoal login` and `shoal workspace use` remember."""

    url: str | None = None
    key: str | None = None
    key_id: str | None = None
    """So that `shoal logout` can revoke the key it made."""
    workspace: str | None = None

    @classmethod
    def load(cls, layout: Layout) -> ClientConfig:
        if layout.client_config.is_char_device():
            return cls()  # inside a job the file is hidden by a device
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
    """Where to go. Without a URL: this data directory's private server."""

    url: str | None
    key: str | None
    workspace: str


def find_target(layout: Layout, *, url: str | None = None, workspace: str | None = None) -> Target:
    config = ClientConfig.load(layout)
    wanted = url or os.environ.get("SHOAL_URL") or config.url
    wanted = check_url(wanted) if wanted else None
    # The file's key and workspace belong to the file's server, never to another one.
    is_ours = wanted == (check_url(config.url) if config.url else None)
    key = os.environ.get("SHOAL_API_KEY") or (config.key if is_ours else None)
    space = workspace or os.environ.get("SHOAL_WORKSPACE") or (config.workspace if is_ours else None)
    return Target(wanted, key, space or DEFAULT_WORKSPACE)


def check_url(url: str) -> str:
    """The server's address without a trailing slash, or InvalidSpec."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidSpec(f"{url!r} is not a server address.", hint="It looks like http://127.0.0.1:8080")
    if "@" in parts.netloc:
        raise InvalidSpec("A server address holds no user name or password.", hint="Sign in with: shoal login")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/api/v1")


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unknown_host(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


def _rm(layout: Layout) -> str:
    return f"rm {layout.client_config} && shoal login"
