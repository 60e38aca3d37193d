"""All calls to Ray's API. Only the driver's process uses this module; it can be imported even if Ray is not installed."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from typing import Any

from shoal.engines.ray.actor import MachineActor
from shoal.engines.ray.daemon import MACHINE_RESOURCE, SLOT_RESOURCE

NAMESPACE = "shoal"
_A_BIT = 0.001
"""Share of a machine's own resource (of which there is 1) in a request; it selects the machine and reserves nothing of note."""
_THREADS = 16
"""Threads of an actor: one for the long poll of `news`, the others for requests meanwhile."""


class Cluster:
    """The Ray cluster, as the driver uses it."""

    def __init__(self, address: str):
        # Imported by name, because Ray is not installed where the rest of this package is checked and tested.
        self._ray: Any = importlib.import_module("ray")
        self._groups: Any = importlib.import_module("ray.util.placement_group")
        self._strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        self._ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)

    def nodes(self) -> dict[str, str]:
        """Return Ray's node id → machine name of all nodes that are up.

        After a restart of Ray a machine may have two for a while.
        """
        return {
            node["NodeID"]: resource.removeprefix(MACHINE_RESOURCE)
            for node in self._ray.nodes()
            if node["Alive"]
            for resource in node["Resources"]
            if resource.startswith(MACHINE_RESOURCE)
        }

    def actor(self, node_id: str) -> Any:
        """Return the actor on that node, created if there is none; it outlives this process."""
        strategy = self._strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        return (
            self._ray.remote(MachineActor)
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

    def drop(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)

    def call(self, method: Any, *args: Any, within_s: float | None) -> Any:
        return self._ray.get(method.remote(*args), timeout=within_s)

    def call_all(self, calls: list[tuple[Any, tuple[Any, ...]]], within_s: float) -> None:
        self._ray.get([method.remote(*args) for method, args in calls], timeout=within_s)

    def reserve(self, name: str, places: list[tuple[str, int]], within_s: float) -> bool:
        """Reserve the slots of all nodes, given as (machine, slots), or none; return whether it worked.

        Stays until released.
        """
        bundles = [{f"{MACHINE_RESOURCE}{machine}": _A_BIT, SLOT_RESOURCE: slots} for machine, slots in places]
        group = self._groups.placement_group(bundles, strategy="PACK", name=name, lifetime="detached")
        return bool(group.wait(within_s))

    def release(self, name: str) -> None:
        with suppress(ValueError):  # there is no such group
            self._groups.remove_placement_group(self._groups.get_placement_group(name))

    def reserved(self) -> list[str]:
        table = self._groups.placement_group_table()
        return [group["name"] for group in table.values() if group["state"] != "REMOVED"]
