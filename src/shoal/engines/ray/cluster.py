"""Every word spoken to Ray. Only the gateway's process uses this; where Ray is not installed it still imports."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from typing import Any

from shoal.engines.ray.hand import Hand
from shoal.engines.ray.node import MACHINE_RESOURCE, SLOT_RESOURCE

NAMESPACE = "shoal"
_A_BIT = 0.001
"""Of a machine's own resource, of which there is 1: says where, not how much."""
_THREADS = 16
"""Of a hand: one for whoever listens, the others for what is asked meanwhile."""


class Cluster:
    def __init__(self, address: str):
        # By name, because Ray is not there where the rest of this package is checked and tested.
        self._ray: Any = importlib.import_module("ray")
        self._groups: Any = importlib.import_module("ray.util.placement_group")
        self._strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        self._ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)

    def nodes(self) -> dict[str, str]:
        """Ray's id of each that is up → the machine's name. A machine whose Ray was started again may have two for a while."""
        return {
            node["NodeID"]: resource.removeprefix(MACHINE_RESOURCE)
            for node in self._ray.nodes()
            if node["Alive"]
            for resource in node["Resources"]
            if resource.startswith(MACHINE_RESOURCE)
        }

    def hand(self, node_id: str) -> Any:
        """The one on that node, which is made if there is none; it outlives us."""
        strategy = self._strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        return (
            self._ray.remote(Hand)
            .options(
                name=f"hand:{node_id}",
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=0,
                max_concurrency=_THREADS,
                scheduling_strategy=strategy,
            )
            .remote()
        )

    def drop(self, hand: Any) -> None:
        with suppress(Exception):
            self._ray.kill(hand)

    def call(self, method: Any, *args: Any, within_s: float | None) -> Any:
        return self._ray.get(method.remote(*args), timeout=within_s)

    def call_all(self, calls: list[tuple[Any, tuple[Any, ...]]], within_s: float) -> None:
        self._ray.get([method.remote(*args) for method, args in calls], timeout=within_s)

    def reserve(self, name: str, places: list[tuple[str, int]], within_s: float) -> bool:
        """Room for a gang, all or nothing: (machine, slots) of each node. It stays until released."""
        bundles = [{f"{MACHINE_RESOURCE}{machine}": _A_BIT, SLOT_RESOURCE: slots} for machine, slots in places]
        group = self._groups.placement_group(bundles, strategy="PACK", name=name, lifetime="detached")
        return bool(group.wait(within_s))

    def release(self, name: str) -> None:
        with suppress(ValueError):  # there is none
            self._groups.remove_placement_group(self._groups.get_placement_group(name))

    def reserved(self) -> list[str]:
        table = self._groups.placement_group_table()
        return [group["name"] for group in table.values() if group["state"] != "REMOVED"]
