"""Agents on the machines of a Ray cluster. All is asked of the gateway over HTTP; this process never imports Ray.

One thread hears from the gateway and repeats what it has not yet done; whoever asks here is answered from what is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx

from shoal.agent.link import backoff
from shoal.core.errors import Refused, ShoalError, Unreachable
from shoal.core.loops import describe
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine
from shoal.engines.ray.book import GONE
from shoal.engines.ray.head import Head
from shoal.engines.ray.records import NodeRecord, Record, Records, Wish

logger = logging.getLogger(__name__)

_HEAR_S, _ASK_S = 5.0, 2.0
_CLEAN_S = 60.0
_CLOSE_S = 1.0
"""What the thread still waits for is of no use to anybody."""
_SALVAGE_EVERY_S = 2.0
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.2, 5.0


class RayEngine(Engine):
    def __init__(self, head: Head, machines: Callable[[], list[Machine]], *, agent_env: dict[str, str] | None = None):
        """`machines` are those of the pool; whether each is there now is Ray's to say."""
        self._head, self._machines, self._agent_env = head, machines, agent_env or {}
        self._records = Records(head.folder / "attempts")
        self._http = httpx.Client(trust_env=False, headers={"Authorization": f"Bearer {head.gateway_token()}"})
        self._seen: dict[str, Any] | None = None
        """What the gateway last said; None until it has said anything."""
        self._handed: dict[str, tuple[Gang, str, int]] = {}
        """Gangs that were handed over and not seen yet; to which gateway, and the version of its book by then."""
        self._salvaged_at: dict[tuple[str, int], float] = {}
        self._problem: str | None = None
        self._closing = threading.Event()
        self._cleaner = threading.Thread()
        self._thread = threading.Thread(target=self._run, name="ray-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Agents and cluster stay."""
        self._closing.set()
        self._http.close()
        self._thread.join(_CLOSE_S)

    def probe(self) -> list[str]:
        return [self._problem] if self._problem else []

    def capacity(self) -> list[Machine]:
        seen = self._seen
        there = set((seen or {}).get("machines") or ())
        return [m if m.name in there else _lost(m, heard=seen is not None) for m in self._machines()]

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
        self._handed[gang.attempt_id] = (gang, "", 0)
        self._try(self._hand_over, gang)

    def status(self, attempt_id: str, node: int) -> AgentState:
        record = self._records.get(attempt_id)
        if record is None or record.wish is Wish.CLEAN or record.find(node) is None:
            return AgentState.UNKNOWN
        seen = self._seen
        if seen is None or (attempt_id in self._handed and record.wish is Wish.RUN):
            return AgentState.ALIVE  # as far as we know; its own silence would tell
        if attempt_id in seen["failed"]:
            return AgentState.UNKNOWN
        state = seen["agents"].get(attempt_id, {}).get(str(node), GONE)
        return AgentState.GONE if state == GONE else AgentState.ALIVE

    def salvage(self, attempt_id: str, node: int) -> None:
        """A machine that is away is asked when it is back."""
        record = self._records.get(attempt_id)
        last = self._salvaged_at.get((attempt_id, node), float("-inf"))
        if record is not None and time.monotonic() - last > _SALVAGE_EVERY_S:
            self._records.set_unsaid(attempt_id, node, unsaid=True)
            self._try(self._fetch_last_words, record, node)

    def cancel(self, attempt_id: str) -> None:
        record = self._records.want(attempt_id, Wish.CANCEL)
        if record is not None:
            self._handed.pop(attempt_id, None)
            self._try(self._post, "/cancel", self._body(record))

    def adopt(self) -> set[str]:
        return {
            record.attempt_id
            for record in self._records.all()
            if record.wish is Wish.RUN
            and any(self.status(record.attempt_id, n.node) is AgentState.ALIVE for n in record.nodes)
        }

    def clean(self, attempt_id: str) -> None:
        record = self._records.want(attempt_id, Wish.CLEAN)
        if record is not None:
            self._handed.pop(attempt_id, None)
            self._salvaged_at = {key: at for key, at in self._salvaged_at.items() if key[0] != attempt_id}

    def _run(self) -> None:
        pauses = backoff(_LEAST_PAUSE_S, _MOST_PAUSE_S)
        while not self._closing.is_set():
            try:
                self._repeat(self._hear())
                self._problem = None
                pauses = backoff(_LEAST_PAUSE_S, _MOST_PAUSE_S)
            except Unreachable as error:
                self._problem = f"Ray: {error.message}"
                if not self._closing.wait(next(pauses)):
                    self._try(self._head.revive_gateway)
            except BaseException as error:
                self._problem = f"Ray: {describe(error)}"
                logger.exception("the Ray engine's thread")
                self._closing.wait(_MOST_PAUSE_S)

    def _hear(self) -> dict[str, Any]:
        """Wait for news."""
        seen = self._seen
        url, instance = self._head.gateway()
        same = seen is not None and seen["instance"] == instance
        after = seen["version"] if seen is not None and same else -1
        news = self._ask("GET", f"{url}/state?after={after}&wait_s={_HEAR_S}", timeout_s=_HEAR_S + _ASK_S)
        self._seen = news | {"instance": instance}
        return self._seen

    def _repeat(self, seen: dict[str, Any]) -> None:
        """What is wanted and not yet so."""
        for attempt_id, (gang, handed_to, version) in list(self._handed.items()):
            known = attempt_id in seen["agents"] or attempt_id in seen["failed"]
            if known or (handed_to == seen["instance"] and version <= seen["version"]):
                self._handed.pop(attempt_id, None)
            elif handed_to != seen["instance"]:
                self._try(self._hand_over, gang)
        records = self._records.all()
        for record in records:
            if record.wish is Wish.CANCEL and record.attempt_id in seen["agents"]:
                self._try(self._post, "/cancel", self._body(record))
            elif record.wish is not Wish.CLEAN:
                for node in record.unsaid:
                    self._try(self._fetch_last_words, record, node)
        if not self._cleaner.is_alive() and any(record.wish is Wish.CLEAN for record in records):
            # It waits for machines, and news must not.
            self._cleaner = threading.Thread(target=self._clean_up, args=(records,), daemon=True)
            self._cleaner.start()

    def _hand_over(self, gang: Gang) -> None:
        _, instance = self._head.gateway()
        record = self._records.get(gang.attempt_id)
        if record is None:
            return
        nodes = [
            {**asdict(node), "slots": len(launch.slots), "launch": launch.model_dump_json()}
            for node, launch in zip(record.nodes, gang.nodes, strict=True)
        ]
        done = self._post("/start", {"attempt_id": gang.attempt_id, "nodes": nodes, "env": self._agent_env})
        if gang.attempt_id in self._handed:
            self._handed[gang.attempt_id] = (gang, instance, done["version"])

    def _fetch_last_words(self, record: Record, node: int) -> None:
        found, seen = record.find(node), self._seen
        if found is None or seen is None or found.machine not in (seen["machines"] or ()):
            return
        self._post("/salvage", {"attempt_id": record.attempt_id, "node": asdict(found), "env": self._agent_env})
        self._salvaged_at[record.attempt_id, node] = time.monotonic()
        self._records.set_unsaid(record.attempt_id, node, unsaid=False)

    def _clean_up(self, records: list[Record]) -> None:
        for record in records:
            if record.wish is Wish.CLEAN and not self._closing.is_set():
                self._try(self._clean, record)

    def _clean(self, record: Record) -> None:
        known = {m.name for m in self._machines()}
        left = [node for node in record.nodes if node.machine in known]
        self._post("/clean", self._body(replace(record, nodes=left)), timeout_s=_CLEAN_S)
        self._records.drop(record.attempt_id)

    def _body(self, record: Record) -> dict[str, Any]:
        nodes = [asdict(node) for node in record.nodes]
        return {"attempt_id": record.attempt_id, "nodes": nodes, "env": self._agent_env}

    def _post(self, path: str, body: dict[str, Any], *, timeout_s: float = _ASK_S) -> dict[str, Any]:
        return self._ask("POST", self._head.gateway()[0] + path, body, timeout_s=timeout_s)

    def _ask(self, method: str, url: str, body: dict[str, Any] | None = None, *, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._http.request(method, url, json=body, timeout=timeout_s)
            answer.raise_for_status()
            known: dict[str, Any] = answer.json()
            return known
        except (httpx.HTTPError, ValueError, RuntimeError) as error:
            raise Unreachable(f"the cluster's gateway: {error}") from None

    def _try(self, action: Callable[..., object], *args: Any) -> None:
        """What fails is done again by our thread, or asked again by the scheduler."""
        try:
            action(*args)
        except (OSError, ShoalError) as error:
            logger.info("to be repeated: %s", error)


def _lost(machine: Machine, *, heard: bool) -> Machine:
    problem = "not connected to the cluster" if heard else "the cluster has not answered yet"
    return replace(machine, state="lost", problems=[*machine.problems, problem])
