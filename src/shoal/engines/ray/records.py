"""Records of the attempts that the server handed to Ray, on its own disk: their nodes, and what is to happen with them.

They never contain the token of an agent.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from shoal.core.private import write_private


class Goal(StrEnum):
    """The wanted state of an attempt."""

    RUN = "run"
    CANCEL = "cancel"
    """None of its processes may run."""
    CLEAN = "clean"
    """None of its files may be left on disks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node of an attempt: its machine, its directory, and the commands that run and recover it."""

    node: int
    machine: str
    work_dir: str
    argv: list[str]
    salvage: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An attempt that was handed to Ray."""

    attempt_id: str
    nodes: list[NodeRecord]
    wish: Goal = Goal.RUN
    unsaid: tuple[int, ...] = ()
    """Nodes that still need recovery: their agent died or was killed by us before it delivered all records."""

    def find(self, node: int) -> NodeRecord | None:
        return next((n for n in self.nodes if n.node == node), None)


class Records:
    """All records, in memory and as one file per attempt. A file is written before the record in memory changes."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Record] = {}
        for path in sorted(folder.glob("*.json")):
            body = json.loads(path.read_text())
            nodes = [NodeRecord(**node) for node in body["nodes"]]
            self._known[path.stem] = Record(
                attempt_id=path.stem, nodes=nodes, wish=Goal(body["wish"]), unsaid=tuple(body["unsaid"])
            )

    def get(self, attempt_id: str) -> Record | None:
        with self._lock:
            return self._known.get(attempt_id)

    def all(self) -> list[Record]:
        with self._lock:
            return list(self._known.values())

    def put(self, record: Record) -> None:
        with self._lock:
            write_private(self._folder / f"{record.attempt_id}.json", json.dumps(asdict(record)))
            self._known[record.attempt_id] = record

    def want(self, attempt_id: str, wish: Goal) -> Record | None:
        """Set the wanted state of an attempt; return its record, or None if there is no such attempt."""
        record = self.get(attempt_id)
        if record is not None and record.wish != wish:
            # Agents that we kill have not delivered all their records.
            unsaid = tuple(n.node for n in record.nodes) if wish is Goal.CANCEL else record.unsaid
            record = replace(record, wish=wish, unsaid=unsaid)
            self.put(record)
        return record

    def set_unsaid(self, attempt_id: str, node: int, *, unsaid: bool) -> None:
        record = self.get(attempt_id)
        if record is not None and (node in record.unsaid) != unsaid:
            left = tuple(n for n in record.unsaid if n != node)
            self.put(replace(record, unsaid=(*left, node) if unsaid else left))

    def drop(self, attempt_id: str) -> None:
        with self._lock:
            self._known.pop(attempt_id, None)
            (self._folder / f"{attempt_id}.json").unlink(missing_ok=True)
