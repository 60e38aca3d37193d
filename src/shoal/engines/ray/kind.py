"""Ray as the cluster of the machine pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shoal.core.settings import Layout
from shoal.engines.base import Engine, Machine
from shoal.engines.cluster import Cluster, JoinCommand
from shoal.engines.kinds import PoolKind

if TYPE_CHECKING:
    from shoal.engines.ray.head import Head


class RayKind(PoolKind):
    """Agents on the machines of the pool, which Ray connects."""

    name, title = "ray", "Ray"
    extras, packages = ("ray",), ("ray",)
    folder = "ray"
    programs = ("shoal.engines.ray.daemon", "shoal.engines.ray.node")

    def open_cluster(self, layout: Layout) -> Cluster:
        from shoal.engines.ray.head import Head

        return RayCluster(Head(layout))


class RayCluster(Cluster):
    """A Ray cluster."""

    def __init__(self, head: Head):
        self._head = head

    def ensure(self, address: str | None) -> None:
        self._head.ensure(address)

    def stop(self) -> None:
        self._head.stop()

    def addresses(self) -> list[tuple[str, int]]:
        info = self._head.info()
        return [(info.address, info.port)] if info is not None else []

    def join(self, machine: str, slots: int, *, python: str, home: str, address: str) -> JoinCommand:
        argv = self._head.join_argv(machine, slots, python=python, home=home, address=address)
        return JoinCommand(argv=argv, token=self._head.token_file.read_text())

    def open_engine(self, machines: Callable[[], list[Machine]], agent_env: Mapping[str, str]) -> Engine:
        from shoal.engines.ray.engine import RayEngine

        return RayEngine(self._head, machines, agent_env=dict(agent_env))
