"""A real Ray cluster for tests: the head here, its machines in namespaces that pass for hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.core.settings import Layout
from shoal.engines.base import Machine
from shoal.engines.ray.engine import RayEngine
from shoal.engines.ray.head import Head
from shoal.testing.engines import eventually
from shoal.testing.hosts import Host, Lan, lan


class RayHosts:
    """Each host is a machine of two slots; `python` is what agents there are started with."""

    def __init__(self, net: Lan, folder: Path, python: str):
        self.net, self.head, self._python = net, Head(Layout(folder)), python
        self.head.ensure(net.address)
        for host in net.hosts:
            self.join(host)
        self.engine = self.open()

    def open(self) -> RayEngine:
        """Return an engine like that of a server that has just started."""
        return RayEngine(self.head, self.machines)

    def machines(self) -> list[Machine]:
        return [
            Machine(name=h.name, kind="cpu", slots=2, address=h.address, home=str(h.home), python=self._python)
            for h in self.net.hosts
        ]

    def join(self, host: Host) -> None:
        (host.home / "ray").mkdir(exist_ok=True)
        shutil.copy(self.head.token_file, host.home / "ray" / "token")
        argv = self.head.join_argv(host.name, 2, python=sys.executable, home=str(host.home), address=host.address)
        with (host.home / "ray" / "node.log").open("ab") as log:
            host.popen(*argv, stdout=log, stderr=log, start_new_session=True)

    def nodes_dirs(self) -> dict[str, Path]:
        return {h.name: h.home / "nodes" for h in self.net.hosts}

    def states(self) -> dict[str, str]:
        return {m.name: m.state for m in self.engine.capacity()}

    def all_up(self, timeout_s: float = 90.0) -> None:
        eventually(lambda: set(self.states().values()) == {"up"}, timeout_s)

    def close(self) -> None:
        self.engine.close()
        self.head.stop()


@contextmanager
def ray_hosts(folder: Path, python: str, *names: str) -> Iterator[RayHosts]:
    with lan(*names) as net:
        hosts = RayHosts(net, folder, python)
        try:
            hosts.all_up()
            yield hosts
        finally:
            hosts.close()
