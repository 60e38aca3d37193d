"""URLs at which the hosts of a cluster reach our server. Resolved in the background, because that may take long."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.core.errors import ShoalError
from shoal.engines.slurm.text import Host


class ServerUrls:
    """The URL of this server for each host."""

    def __init__(self, url: str | None, url_for: Callable[[str], str] | None):
        """Set up without lookups. `url` is configured by an admin and applies to all hosts."""
        self._url, self._url_for = url, url_for
        self._known: dict[str, str | None] = {}

    def url(self, host: str) -> str | None:
        """Return the URL for a host; None if it is our own machine or not known yet."""
        return self._url or self._known.get(host)

    def find(self, hosts: Iterable[Host]) -> list[Host]:
        """Return the hosts; those that cannot reach us are marked as lost, because nothing could run there."""
        return [self._found(host) for host in hosts]

    def _found(self, host: Host) -> Host:
        if self._url is not None or host.name in self._known:
            return host
        try:
            address = socket.gethostbyname(host.address)
            ours = self._url_for is None or ipaddress.ip_address(address).is_loopback
            self._known[host.name] = None if ours or self._url_for is None else self._url_for(address)
            return host
        except OSError:
            problem = f"cannot resolve '{host.address}'; set the server's address with: shoal engine add slurm --server-url URL"
        except ShoalError as error:
            problem = error.message
        return replace(host, state="lost", problem=problem)
