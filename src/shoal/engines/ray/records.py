"""What the server knows of attempts it handed to Ray, on its own disk: where their nodes are and what is wanted of them.

The token of an agent is never in here.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from shoal.core.private import write_private


class Wish(StrEnum):
    RUN = "run"
    CANCEL = "cancel"
    """Nothing of it may run."""
    CLEAN = "clean"
    """Nothing of it may be left on disks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    node: int
    machine: str
    work_dir: str
    argv: list[str]
    salvage: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    attempt_id: str
    nodes: list[NodeRecord]
    wish: Wish = Wish.RUN
    unsaid: tuple[int, ...] = ()
    """Nodes whose last words are still to be fetched: their agent died, or was ended by us."""

    def find(self, node: int) -> NodeRecord | None:
        return next((n for n in self.nodes if n.node == node), None)


class Records:
    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Record] = {}
        for path in sorted(folder.glob("*.json")):
            body = json.loads(path.read_text())
            nodes = [NodeRecord(**node) for node in body["nodes"]]
            self._known[path.stem] = Record(
                attempt_id=path.stem, nodes=nodes, wish=Wish(body["wish"]), unsaid=tuple(body["unsaid"])
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

    def want(self, attempt_id: str, wish: Wish) -> Record | None:
        """None if there is no such attempt."""
        record = self.get(attempt_id)
        if record is not None and record.wish != wish:
            # Who is ended by us has not said its last words.
            unsaid = tuple(n.node for n in record.nodes) if wish is Wish.CANCEL else record.unsaid
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
