"""Record of a run: operations with their answers, faults, and what was seen meanwhile. It is saved as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError

MAYBE = frozenset({"unreachable", "timed_out", "storage_failing", "storage_full", "interrupted"})
"""Codes of errors after which an operation may or may not have happened."""


@dataclass(slots=True)
class Operation:
    """One operation of a client. Times are seconds since the run began."""

    kind: str
    subject: str
    args: dict[str, Any]
    began: float
    ended: float | None = None
    result: str = "open"
    """`ok`: acknowledged. `maybe`: no answer, or one that leaves it open. `refused`: not done. `open`: still under way."""
    code: str | None = None
    message: str | None = None
    answer: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Fault:
    """One fault: `began` and `ended` enclose the injection, `recovered_s` is the time from its end until all worked again."""

    id: str
    what: str
    began: float
    ended: float | None = None
    recovered_s: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class History:
    """All that happened in one run. Safe for use by several threads."""

    def __init__(self, seed: int):
        self.seed, self.started_at = seed, time.time()
        self.operations: list[Operation] = []
        self.faults: list[Fault] = []
        self.samples: list[dict[str, Any]] = []
        """Server processes seen: time, pid, RSS in bytes, open files, threads."""
        self.shown: dict[str, dict[str, float]] = {}
        """Job → log line as `attempt/node/rank/text` → time at which the API showed it first."""
        self.notes: list[dict[str, Any]] = []
        """Violations that were seen while the run went on."""
        self._lock = threading.Lock()
        self._zero = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._zero

    @contextmanager
    def operation(self, kind: str, subject: str, **args: Any) -> Iterator[Operation]:
        """Record an operation; it counts as acknowledged if the block ends without an error. Errors of the API do not leave it."""
        done = Operation(kind, subject, args, self.now())
        with self._lock:
            self.operations.append(done)
        try:
            yield done
        except ShoalError as error:
            done.result = "maybe" if error.code in MAYBE else "refused"
            done.code, done.message = error.code, error.message
        except OSError as error:  # the connection broke
            done.result, done.code, done.message = "maybe", "connection", str(error)
        else:
            done.result = "ok"
        finally:
            done.ended = self.now()

    def fault(self, id: str, what: str, **detail: Any) -> Fault:
        fault = Fault(id, what, self.now(), detail=detail)
        with self._lock:
            self.faults.append(fault)
        return fault

    def note(self, kind: str, subject: str, what: str) -> None:
        with self._lock:
            self.notes.append({"at": self.now(), "kind": kind, "subject": subject, "what": what})

    def show(self, job: str, keys: list[str]) -> None:
        with self._lock:
            seen, now = self.shown.setdefault(job, {}), self.now()
            for key in keys:
                seen.setdefault(key, now)

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            return {
                "seed": self.seed,
                "started_at": self.started_at,
                "operations": [asdict(one) for one in self.operations],
                "faults": [asdict(one) for one in self.faults],
                "samples": list(self.samples),
                "shown": {job: dict(seen) for job, seen in self.shown.items()},
                "notes": list(self.notes),
            }

    def save(self, path: Path, **more: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(self.as_json() | more))
        aside.replace(path)
