"""Evidence from a copy of a drilled job: the drill's log lines, its metrics attempt by attempt, and its sample log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.core.drills import MARK

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import LogLine

Steps = dict[int, Any]
"""Mapping of step → value."""


@dataclass(frozen=True, slots=True)
class DrillLine:
    """One log line about the drill, written by a worker or an agent."""

    event: str
    attempt: int
    at: float
    """Unix time in seconds, by the node's clock."""
    step: int = 0
    fault: int | None = None


@dataclass(slots=True)
class Copy:
    name: str
    status: str
    reason: str | None = None
    told: list[DrillLine] = field(default_factory=list)
    points: dict[str, dict[int, Steps]] = field(default_factory=dict)
    """Mapping of metric → attempt → step → value."""
    times: dict[int, Steps] = field(default_factory=dict)
    """Mapping of attempt → step → time of the step."""
    ledger: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)
    """Mapping of attempt → reason of its end."""

    def first(self, event: str, **wanted: int) -> DrillLine | None:
        return next(
            (t for t in self.told if t.event == event and all(getattr(t, k) == v for k, v in wanted.items())), None
        )

    def going_after(self, attempt: int) -> DrillLine | None:
        """Return the line about the first step of a later attempt, or None."""
        return next((t for t in self.told if t.event == "going" and t.attempt > attempt), None)

    def last_step(self, attempt: int) -> int:
        return max((max(steps[attempt]) for steps in self.points.values() if steps.get(attempt)), default=0)

    def history(self, name: str) -> Steps:
        """Return the final history of a metric: values of later attempts replace those of earlier ones."""
        found: Steps = {}
        for _, steps in sorted(self.points.get(name, {}).items()):
            found = {step: value for step, value in found.items() if step < min(steps)} | steps
        return found

    @property
    def end(self) -> int:
        """Last step of the job."""
        ended = self.first("ended")
        return ended.step if ended else max((self.last_step(a) for s in self.points.values() for a in s), default=0)


def collect(client: Client, job_id: str) -> Copy:
    view = client.jobs.get(job_id)
    copy = Copy(view.name, view.status, view.reason)
    copy.told = read_drill_lines(client.jobs.lines(job_id))
    by_step, by_time = (client.metrics.read(job_id, axis=axis, ghosts=True) for axis in ("step", "time"))
    copy.points = {name: by_attempt(by_step, name) for name in by_step["metrics"]}
    busiest = max(copy.points, key=lambda name: len(by_step["metrics"][name]), default=None)
    if busiest is not None:
        copy.times = by_attempt(by_step, busiest, by_time)
    copy.ledger = client.metrics.ledger(job_id)
    copy.ends = {a.number: a.reason or a.result or "" for a in view.attempt_list}
    return copy


def read_drill_lines(lines: Iterable[LogLine]) -> list[DrillLine]:
    """Return the lines about the drill, sorted by attempt and time. A marker tells them apart from the script's output."""
    found = []
    for line in lines:
        _, mark, text = line.text.partition(MARK)
        if mark:
            told = json.loads(text)
            found.append(
                DrillLine(
                    str(told["event"]), line.attempt, float(told["t"]), int(told.get("step", 0)), told.get("fault")
                )
            )
    return sorted(found, key=lambda t: (t.attempt, t.at))


def by_attempt(view: Mapping[str, Any], name: str, times: Mapping[str, Any] | None = None) -> dict[int, Steps]:
    """Return a metric's points by attempt: step → value, or with `times` step → time."""
    starts = sorted(((int(a), int(step)) for a, step in view["starts"].items()), reverse=True)
    found: dict[int, Steps] = {}
    kept, ghosts = view["metrics"].get(name, []), (view.get("ghosts") or {}).get(name, [])
    whens = [] if times is None else [*times["metrics"].get(name, []), *(times.get("ghosts") or {}).get(name, [])]
    for number, row in enumerate([*kept, *ghosts]):
        step = int(row[0])
        attempt = int(row[2]) if len(row) > 2 else next((a for a, start in starts if step >= start), 1)
        found.setdefault(attempt, {})[step] = row[1] if times is None else float(whens[number][0])
    return found
