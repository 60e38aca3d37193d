"""How the hosts of a cluster reach our server. Looked up in the background, since names may take long to resolve."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.core.errors import ShoalError
from shoal.engines.slurm.text import Host


class Ways:
    def __init__(self, url: str | None, url_for: Callable[[str], str] | None):
        """`url`: what an admin said; it holds for all."""
        self._url, self._url_for = url, url_for
        self._known: dict[str, str | None] = {}

    def url(self, host: str) -> str | None:
        """None where it is our own machine."""
        return self._url or self._known.get(host)

    def find(self, hosts: Iterable[Host]) -> list[Host]:
        """The same hosts; those without a way to us count as lost, as nothing could run there."""
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
            problem = (
                f"'{host.address}' has no address here: shoal engine add slurm --server-url says how it reaches us"
            )
        except ShoalError as error:
            problem = error.message
        return replace(host, state="lost", problem=problem)
