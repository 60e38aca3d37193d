"""Egress proxy of a sandbox without network: CONNECT through a Unix socket, to public addresses only.

A name is resolved here, all its addresses are checked, and one of the checked addresses is connected. So DNS rebinding, the
cloud's metadata service and machines of the local network are out of reach. The other end, inside the sandbox, is init.py.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit

from shoal.agent.link import present_url
from shoal.agent.wire import Launch
from shoal.core.addresses import is_public
from shoal.core.background_loops import serve_each
from shoal.core.proxy import CONNECT_S, ForwardProxy, connect_any, relay

SOCKET = "egress.sock"
_MAX_OPEN = 256


class Egress:
    """The proxy of one sandbox: connects to public addresses, or with `allowed` only to these hosts."""

    def __init__(self, folder: Path, allowed: Sequence[str] = ()):
        """Listen in `folder`. `allowed` are names such as `pypi.org`, `*.example.org` or `10.0.0.5`; empty: all public ones."""
        self._allowed = [name.lower() for name in allowed]
        self._proxy = ForwardProxy(listen_in(folder, SOCKET), self._connect, name="egress", at_once=_MAX_OPEN)

    def close(self) -> None:
        self._proxy.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        if self._allowed and not any(fnmatch(host.lower(), name) for name in self._allowed):
            raise PermissionError(f"{host} is not among the hosts that jobs of this server may connect to")
        # A host that an administrator has named need not be public.
        return _connect(host, port, anywhere=host.lower() in self._allowed)


class Forward:
    """Connections to the server, which a job needs for streaming data; the server checks the job's token."""

    def __init__(self, folder: Path, name: str, launch: Launch):
        self._launch, self._closed, self._listener = launch, threading.Event(), listen_in(folder, name)
        threading.Thread(target=self._accept, name=name, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        serve_each(self._listener, self._serve, self._closed, name="forward", at_once=_MAX_OPEN)

    def _serve(self, client: socket.socket) -> None:
        url = present_url(self._launch.server_file, self._launch.instance) or self._launch.url
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = (parts.hostname or "127.0.0.1", port)
        with suppress(OSError), client, socket.create_connection(address, timeout=CONNECT_S) as upstream:
            relay(client, upstream, name="forward")


def listen_in(folder: Path, name: str) -> socket.socket:
    """Return a Unix socket that listens in a folder which is visible in the sandbox."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Through the folder's descriptor, because the path of a socket has at most 107 bytes.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        listener.bind(f"/proc/self/fd/{fd}/{name}")
        os.chmod(name, 0o666, dir_fd=fd)  # noqa: S103  access is limited by the folder
    finally:
        os.close(fd)
    listener.listen(64)
    return listener


def _connect(host: str, port: int, *, anywhere: bool = False) -> socket.socket:
    """Connect to a host. `anywhere`: it need not be public."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not anywhere and not all(is_public(address) for address in addresses):
        raise PermissionError(f"{host} is not a public address")
    return connect_any(addresses, port)
