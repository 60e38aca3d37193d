"""One actor on each machine that is up, with a thread that polls it. A machine counts as up once its actor has reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from shoal.engines.ray.cluster import Cluster

logger = logging.getLogger(__name__)

_FIRST_REPORT_S = 60.0
_ANSWER_S = 5.0
"""Seconds to wait for a busy actor; a call to one whose process has ended fails at once."""


class MachineActors:
    """The actors of all machines. `_lock` guards the tables; calls to actors and the callbacks for agents run without it."""

    def __init__(
        self,
        cluster: Cluster,
        on_live: Callable[[str], None],
        on_ended: Callable[[str], None],
        on_machines: Callable[[list[str]], None],
        on_devices: Callable[[str, Any], None] = lambda machine, inventory: None,
        on_disk: Callable[[str, str], None] = lambda machine, full: None,
    ):
        """Set up without actors.

        `on_live` and `on_ended` are called with the name of an agent each time an actor reports it. `on_machines` is called
        with all machines; after a machine is lost, before `on_ended` for its agents. `on_devices` is called with a machine and
        its inventory, if it has accelerators; `on_disk` with a machine and why no agent can start on its disk, empty if it has room.
        """
        self._cluster, self._on_live, self._on_ended, self._on_machines = cluster, on_live, on_ended, on_machines
        self._on_devices, self._on_disk = on_devices, on_disk
        self._lock = threading.Condition()
        self._reached: set[str] = set()
        """Ray nodes that have a polling thread, or whose actor was given up."""
        self._silent: set[str] = set()
        """Ray nodes among them whose actor has not reported yet."""
        self._actors: dict[str, tuple[str, Any]] = {}
        """Ray node id → machine name and actor, once the actor has reported."""
        self._names: dict[str, set[str]] = {}
        """Ray node id → names of the agents known to run there."""

    def poll_new_nodes(self) -> None:
        """Start to poll the actors of new nodes."""
        nodes = self._cluster.nodes()
        with self._lock:
            fresh = set(nodes) - self._reached
            self._reached = set(nodes)
            self._silent |= fresh
        for node_id in fresh:
            threading.Thread(target=self._listen, args=(node_id, nodes[node_id]), daemon=True).start()

    def wait_for_first_reports(self, within_s: float) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._silent, within_s)

    def report_machines(self) -> None:
        with self._lock:  # so that the last call has the newest list
            self._on_machines(sorted({machine for machine, _ in self._actors.values()}))

    def on(self, machine: str, *, to_start: str | None = None) -> Any:
        """Return the actor on a machine.

        `to_start` registers an agent there: if the actor is lost, the agent counts as ended.
        """
        with self._lock:
            nodes = [node_id for node_id, (name, _) in self._actors.items() if name == machine]
            if not nodes:
                raise LookupError(f"machine '{machine}' is not connected now")
            if to_start is not None:
                self._names[nodes[-1]].add(to_start)
            return self._actors[nodes[-1]][1]

    def _listen(self, node_id: str, machine: str) -> None:
        actor = self._cluster.actor(node_id)
        try:
            news = self._cluster.call(actor.news, -1, within_s=_FIRST_REPORT_S)
            while True:
                self._update(node_id, machine, actor, news)
                try:
                    news = self._cluster.call(actor.news, news["version"], within_s=None)
                except Exception as error:
                    # A broken connection alone does not mean that the actor has ended: try once more.
                    logger.info("actor on %s: %s", machine, type(error).__name__)
                    news = self._cluster.call(actor.news, -1, within_s=_ANSWER_S)
        except Exception as error:
            logger.warning("the actor on %s has ended: %s", machine, type(error).__name__)
        self._lose(node_id, actor)

    def _update(self, node_id: str, machine: str, actor: Any, news: dict[str, Any]) -> None:
        with self._lock:
            self._actors[node_id] = (machine, actor)
            self._names.setdefault(node_id, set()).update(news["live"])
            self._names[node_id] -= set(news["ended"])
            self._mark_reported(node_id)
        if (read := news.get("inventory") or news.get("devices")) is not None:  # an actor of 0.1 tells only devices
            self._on_devices(machine, read)
        self._on_disk(machine, news.get("full", ""))
        for name in news["live"]:
            self._on_live(name)
        for name in news["ended"]:
            self._on_ended(name)

    def _lose(self, node_id: str, actor: Any) -> None:
        with self._lock:
            self._actors.pop(node_id, None)
            names = self._names.pop(node_id, set())
            self._mark_reported(node_id)
        self.report_machines()
        for name in names:
            self._on_ended(name)
        self._cluster.drop(actor)

    def _mark_reported(self, node_id: str) -> None:
        self._silent.discard(node_id)
        self._lock.notify_all()
