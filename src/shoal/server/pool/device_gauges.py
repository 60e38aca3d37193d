"""Newest measured values of the GPUs, as the agents of running jobs report them. In memory only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.agents import GpuGauge
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Event, Job

FRESH_S = 30.0
GPU_USE = "gpu_use"
"""Kind of the events that notices about GPUs become."""


class DeviceGauges:
    """Gauges by machine and device. `_lock` guards the tables; request threads write, others read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._gauges: dict[str, dict[str, tuple[float, GpuGauge]]] = {}
        self._noted: dict[tuple[str, int, str], int] = {}

    def put(self, machine: str, gauges: Sequence[GpuGauge]) -> None:
        now = self._clock()
        with self._lock:
            known = self._gauges.setdefault(machine, {})
            known.update({gauge.uuid: (now, gauge) for gauge in gauges})

    def of(self, machine: str) -> dict[str, GpuGauge]:
        """Return UUID → gauge of a machine's devices, without those that are older than FRESH_S."""
        oldest = self._clock() - FRESH_S
        with self._lock:
            return {uuid: gauge for uuid, (at, gauge) in self._gauges.get(machine, {}).items() if at >= oldest}

    def are_new(self, attempt_id: str, node: int, notices: Sequence[str], kind: str = GPU_USE) -> bool:
        """Return whether a node has more notices than it had when this was last asked."""
        with self._lock:
            if len(notices) <= self._noted.get((attempt_id, node, kind), 0):
                return False
            self._noted[attempt_id, node, kind] = len(notices)
            return True


def note(session: Session, attempt_id: str, node: int, notices: Sequence[str], kind: str = GPU_USE) -> None:
    """Add the notices of a node to its job's events, unless they are there (from before a restart of the server)."""
    attempt = session.get_one(Attempt, attempt_id)
    job = session.get_one(Job, attempt.job_id)
    where = f"Node {node}: " if attempt.num_nodes > 1 and kind == GPU_USE else ""
    of_attempt = (Event.job_id == job.id) & (Event.attempt == attempt.number) & (Event.kind == kind)
    known = set(session.scalars(select(Event.message).where(of_attempt)))
    for text in (where + notice for notice in notices):
        if text not in known:
            record_event(session, job, kind, text, attempt=attempt.number)
