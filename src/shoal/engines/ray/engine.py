"""The server's part of the Ray engine. It sends all requests to the Ray driver over HTTP; this process never imports Ray.

One thread receives the driver's state and repeats requests that have not taken effect; all other calls answer from that state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx

from shoal.agent.devices.device import Inventory, order
from shoal.agent.link import backoff
from shoal.core.background_loops import describe
from shoal.core.errors import Refused, ShoalError, Unreachable
from shoal.engines import device_slots
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine
from shoal.engines.ray.head import Head
from shoal.engines.ray.records import Goal, NodeRecord, Record, Records
from shoal.engines.ray.state import GONE

logger = logging.getLogger(__name__)

_RECEIVE_S, _REQUEST_S = 5.0, 2.0
_CLEAN_S = 60.0
_CLOSE_S = 1.0
"""Seconds to wait for the thread when closing; its pending request is no longer needed."""
_SALVAGE_EVERY_S = 2.0
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.2, 5.0


class RayEngine(Engine):
    """Engine that runs agents on the machines of a Ray cluster."""

    def __init__(self, head: Head, machines: Callable[[], list[Machine]], *, agent_env: dict[str, str] | None = None):
        """Start the thread. `machines` returns the machines of the pool; Ray decides which of them are up."""
        self._head, self._machines, self._agent_env = head, machines, agent_env or {}
        self._records = Records(head.folder / "attempts")
        self._http = httpx.Client(trust_env=False, headers={"Authorization": f"Bearer {head.driver_token()}"})
        self._seen: dict[str, Any] | None = None
        """The last state received from the driver; None before the first."""
        self._sent: dict[str, tuple[Gang, str, int]] = {}
        """Gangs sent to the driver that are not in its state yet, with the driver's instance and state version at that time."""
        self._salvaged_at: dict[tuple[str, int], float] = {}
        self._problem: str | None = None
        self._closing = threading.Event()
        self._cleaner = threading.Thread()
        self._thread = threading.Thread(target=self._run, name="ray-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; agents and cluster continue."""
        self._closing.set()
        self._http.close()
        self._thread.join(_CLOSE_S)

    def probe(self) -> list[str]:
        return [self._problem] if self._problem else []

    def capacity(self) -> list[Machine]:
        seen = self._seen
        there = set((seen or {}).get("machines") or ())
        read, full = (seen or {}).get("devices") or {}, (seen or {}).get("full") or {}
        return [
            _with_disk(with_devices(m, read.get(m.name)), full.get(m.name))
            if m.name in there
            else _lost(m, connected=seen is not None)
            for m in self._machines()
        ]

    def plan(self, gang: Gang) -> list[Command]:
        return [
            Command(machine=n.machine, argv=[n.python, "-m", "shoal.agent", str(Path(n.work_dir) / "launch.json")])
            for n in gang.nodes
        ]

    def start(self, gang: Gang) -> None:
        if self._records.get(gang.attempt_id) is not None:
            return
        up = {m.name for m in self.capacity() if m.state == "up"}
        if away := [n.machine for n in gang.nodes if n.machine not in up]:
            raise Refused(f"Machine '{away[0]}' is not up now.", hint="shoal pool list")
        nodes = [
            NodeRecord(
                node=launch.node,
                machine=launch.machine,
                work_dir=launch.work_dir,
                argv=command.argv,
                salvage=[launch.python, "-m", "shoal.agent", "--salvage", launch.work_dir],
            )
            for launch, command in zip(gang.nodes, self.plan(gang), strict=True)
        ]
        self._records.put(Record(attempt_id=gang.attempt_id, nodes=nodes))
        self._sent[gang.attempt_id] = (gang, "", 0)
        self._try(self._send, gang)

    def status(self, attempt_id: str, node: int) -> AgentState:
        record = self._records.get(attempt_id)
        if record is None or record.wish is Goal.CLEAN or record.find(node) is None:
            return AgentState.UNKNOWN
        seen = self._seen
        if seen is None or (attempt_id in self._sent and record.wish is Goal.RUN):
            return AgentState.ALIVE  # assumed; if it is not, its heartbeats will be missing
        if attempt_id in seen["failed"]:
            return AgentState.UNKNOWN
        state = seen["agents"].get(attempt_id, {}).get(str(node), GONE)
        return AgentState.GONE if state == GONE else AgentState.ALIVE

    def salvage(self, attempt_id: str, node: int) -> None:
        """Start the recovery of a node; on a disconnected machine it starts when the machine is back."""
        record = self._records.get(attempt_id)
        last = self._salvaged_at.get((attempt_id, node), float("-inf"))
        if record is not None and time.monotonic() - last > _SALVAGE_EVERY_S:
            self._records.set_unsaid(attempt_id, node, unsaid=True)
            self._try(self._start_recovery, record, node)

    def cancel(self, attempt_id: str) -> None:
        record = self._records.want(attempt_id, Goal.CANCEL)
        if record is not None:
            self._sent.pop(attempt_id, None)
            self._try(self._post, "/cancel", self._body(record))

    def adopt(self) -> set[str]:
        return {
            record.attempt_id
            for record in self._records.all()
            if record.wish is Goal.RUN
            and any(self.status(record.attempt_id, n.node) is AgentState.ALIVE for n in record.nodes)
        }

    def clean(self, attempt_id: str) -> None:
        record = self._records.want(attempt_id, Goal.CLEAN)
        if record is not None:
            self._sent.pop(attempt_id, None)
            self._salvaged_at = {key: at for key, at in self._salvaged_at.items() if key[0] != attempt_id}

    def _run(self) -> None:
        pauses = backoff(_LEAST_PAUSE_S, _MOST_PAUSE_S)
        while not self._closing.is_set():
            try:
                self._repeat(self._receive())
                self._problem = None
                pauses = backoff(_LEAST_PAUSE_S, _MOST_PAUSE_S)
            except Unreachable as error:
                self._problem = f"Ray: {error.message}"
                if not self._closing.wait(next(pauses)):
                    self._try(self._head.revive_driver)
            except BaseException as error:
                self._problem = f"Ray: {describe(error)}"
                logger.exception("the Ray engine's thread")
                self._closing.wait(_MOST_PAUSE_S)

    def _receive(self) -> dict[str, Any]:
        """Wait for a change of the driver's state and return it."""
        seen = self._seen
        url, instance = self._head.driver()
        same = seen is not None and seen["instance"] == instance
        after = seen["version"] if seen is not None and same else -1
        news = self._request("GET", f"{url}/state?after={after}&wait_s={_RECEIVE_S}", timeout_s=_RECEIVE_S + _REQUEST_S)
        self._seen = news | {"instance": instance}
        return self._seen

    def _repeat(self, seen: dict[str, Any]) -> None:
        """Repeat the requests that have not taken effect according to the driver's state."""
        for attempt_id, (gang, sent_to, version) in list(self._sent.items()):
            known = attempt_id in seen["agents"] or attempt_id in seen["failed"]
            if known or (sent_to == seen["instance"] and version <= seen["version"]):
                self._sent.pop(attempt_id, None)
            elif sent_to != seen["instance"]:
                self._try(self._send, gang)
        records = self._records.all()
        for record in records:
            if record.wish is Goal.CANCEL and record.attempt_id in seen["agents"]:
                self._try(self._post, "/cancel", self._body(record))
            elif record.wish is not Goal.CLEAN:
                for node in record.unsaid:
                    self._try(self._start_recovery, record, node)
        if not self._cleaner.is_alive() and any(record.wish is Goal.CLEAN for record in records):
            # In a thread of its own, because it waits for machines and must not delay new states.
            self._cleaner = threading.Thread(target=self._clean_up, args=(records,), daemon=True)
            self._cleaner.start()

    def _send(self, gang: Gang) -> None:
        _, instance = self._head.driver()
        record = self._records.get(gang.attempt_id)
        if record is None:
            return
        nodes = [
            {**asdict(node), "slots": len(launch.slots), "launch": launch.model_dump_json()}
            for node, launch in zip(record.nodes, gang.nodes, strict=True)
        ]
        done = self._post("/start", {"attempt_id": gang.attempt_id, "nodes": nodes, "env": self._agent_env})
        if gang.attempt_id in self._sent:
            self._sent[gang.attempt_id] = (gang, instance, done["version"])

    def _start_recovery(self, record: Record, node: int) -> None:
        found, seen = record.find(node), self._seen
        if found is None or seen is None or found.machine not in (seen["machines"] or ()):
            return
        self._post("/salvage", {"attempt_id": record.attempt_id, "node": asdict(found), "env": self._agent_env})
        self._salvaged_at[record.attempt_id, node] = time.monotonic()
        self._records.set_unsaid(record.attempt_id, node, unsaid=False)

    def _clean_up(self, records: list[Record]) -> None:
        for record in records:
            if record.wish is Goal.CLEAN and not self._closing.is_set():
                self._try(self._clean, record)

    def _clean(self, record: Record) -> None:
        known = {m.name for m in self._machines()}
        left = [node for node in record.nodes if node.machine in known]
        self._post("/clean", self._body(replace(record, nodes=left)), timeout_s=_CLEAN_S)
        self._records.drop(record.attempt_id)

    def _body(self, record: Record) -> dict[str, Any]:
        nodes = [asdict(node) for node in record.nodes]
        return {"attempt_id": record.attempt_id, "nodes": nodes, "env": self._agent_env}

    def _post(self, path: str, body: dict[str, Any], *, timeout_s: float = _REQUEST_S) -> dict[str, Any]:
        return self._request("POST", self._head.driver()[0] + path, body, timeout_s=timeout_s)

    def _request(
        self, method: str, url: str, body: dict[str, Any] | None = None, *, timeout_s: float
    ) -> dict[str, Any]:
        try:
            answer = self._http.request(method, url, json=body, timeout=timeout_s)
            answer.raise_for_status()
            known: dict[str, Any] = answer.json()
            return known
        except (httpx.HTTPError, ValueError, RuntimeError) as error:
            raise Unreachable(f"Ray driver: {error}") from None

    def _try(self, action: Callable[..., object], *args: Any) -> None:
        """Call `action` and only log a failure: our thread or the scheduler repeats it."""
        try:
            action(*args)
        except (OSError, ShoalError) as error:
            logger.info("will be repeated: %s", error)


def _lost(machine: Machine, *, connected: bool) -> Machine:
    problem = "not connected to the cluster" if connected else "the cluster has not answered yet"
    return replace(machine, state="lost", problems=[*machine.problems, problem])


def _with_disk(machine: Machine, full: str | None) -> Machine:
    """Return a machine that refuses new nodes while its disk has no room for them."""
    return replace(machine, refuses=full, problems=[*machine.problems, full]) if full else machine


def with_devices(machine: Machine, read: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> Machine:
    """Return a machine with its accelerators as the machine itself last read them; the slots keep their devices.

    The check that added the machine knows which devices it offers; one that the machine no longer shows is unusable.
    """
    if read is None or machine.kind == "cpu":
        return machine
    found = Inventory.from_json(read if isinstance(read, Mapping) else {"devices": read})
    if not machine.inventory:  # an earlier version added it, and its probe told only a number
        ours = [device for device in found.devices if device.kind == machine.kind]
        is_whole = not machine.devices and len(ours) == machine.slots
        return replace(machine, inventory=tuple(sorted(ours, key=order))) if is_whole else machine
    slots = device_slots.merged(machine.inventory, found, machine.kind)[: len(machine.inventory)]
    # A driver that is silent or a device that is broken keeps that reason; the problems of the last check may be older.
    lines = [line for line in found.problems if line not in machine.problems]
    return replace(machine, inventory=tuple(slots), problems=[*machine.problems, *lines])
