"""One actor on each machine of a cluster that only answers questions."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from shoal.engines.ray.actors import MachineActors
from shoal.testing.engines import eventually


class Cluster:
    """Two machines, each of which speaks once and is then silent until it is gone."""

    def __init__(self) -> None:
        self.gone = {"anna": threading.Event(), "berta": threading.Event()}
        self.dropped: list[str] = []

    def nodes(self) -> dict[str, str]:
        return {name: name for name in self.gone}

    def actor(self, node_id: str) -> Any:
        return SimpleNamespace(news=node_id)

    def call(self, node_id: str, version: int, *, within_s: float | None) -> dict[str, Any]:
        if version == -1 and not self.gone[node_id].is_set():
            return {"version": 0, "live": [f"{node_id}.0"], "ended": []}
        self.gone[node_id].wait(20)
        raise ConnectionError

    def drop(self, actor: Any) -> None:
        self.dropped.append(actor.news)


def test_a_lost_machine_is_told_before_what_ran_there_has_ended_and_never_as_there_again() -> None:
    cluster: Any = Cluster()
    told: list[list[str]] = []
    ended: list[tuple[str, list[str]]] = []

    def on_machines(names: list[str]) -> None:
        if not told:  # it is lost while others are still being told that it is there
            cluster.gone["anna"].set()
        told.append(names)

    actors = MachineActors(cluster, lambda _: None, lambda name: ended.append((name, told[-1])), on_machines)
    actors.poll_new_nodes()
    actors.wait_for_first_reports(20)
    actors.report_machines()
    eventually(lambda: cluster.dropped == ["anna"])
    assert told == [["anna", "berta"], ["berta"]]
    assert ended == [("anna.0", ["berta"])]
    cluster.gone["berta"].set()
    eventually(lambda: len(cluster.dropped) == 2)
    assert told[-1] == []
