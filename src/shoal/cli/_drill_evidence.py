"""What a copy of a drilled job leaves: what it told of the drill, its numbers attempt by attempt, its ledger."""

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
"""Step → value."""


@dataclass(frozen=True, slots=True)
class Told:
    """One line a worker or an agent has told of the drill."""

    event: str
    attempt: int
    at: float
    """Unix seconds, by the node's clock."""
    step: int = 0
    fault: int | None = None


@dataclass(slots=True)
class Copy:
    name: str
    status: str
    reason: str | None = None
    told: list[Told] = field(default_factory=list)
    points: dict[str, dict[int, Steps]] = field(default_factory=dict)
    """Metric → attempt → step → value."""
    times: dict[int, Steps] = field(default_factory=dict)
    """Attempt → step → when it was made."""
    ledger: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)
    """Attempt → why it ended."""

    def first(self, event: str, **wanted: int) -> Told | None:
        return next(
            (t for t in self.told if t.event == event and all(getattr(t, k) == v for k, v in wanted.items())), None
        )

    def going_after(self, attempt: int) -> Told | None:
        """The first step that an attempt after this one has made."""
        return next((t for t in self.told if t.event == "going" and t.attempt > attempt), None)

    def last_step(self, attempt: int) -> int:
        return max((max(steps[attempt]) for steps in self.points.values() if steps.get(attempt)), default=0)

    def history(self, name: str) -> Steps:
        """Of a metric, as it stands in the end: later attempts have taken the place of earlier ones."""
        found: Steps = {}
        for _, steps in sorted(self.points.get(name, {}).items()):
            found = {step: value for step, value in found.items() if step < min(steps)} | steps
        return found

    @property
    def end(self) -> int:
        """The last step of all."""
        ended = self.first("ended")
        return ended.step if ended else max((self.last_step(a) for s in self.points.values() for a in s), default=0)


def collect(client: Client, job_id: str) -> Copy:
    view = client.jobs.get(job_id)
    copy = Copy(view.name, view.status, view.reason)
    copy.told = read_told(client.jobs.lines(job_id))
    by_step, by_time = (client.metrics.read(job_id, axis=axis, ghosts=True) for axis in ("step", "time"))
    copy.points = {name: by_attempt(by_step, name) for name in by_step["metrics"]}
    busiest = max(copy.points, key=lambda name: len(by_step["metrics"][name]), default=None)
    if busiest is not None:
        copy.times = by_attempt(by_step, busiest, by_time)
    copy.ledger = client.metrics.ledger(job_id)
    copy.ends = {a.number: a.reason or a.result or "" for a in view.attempt_list}
    return copy


def read_told(lines: Iterable[LogLine]) -> list[Told]:
    """In order of time; a script's own output cannot pass for it unless it wants to."""
    found = []
    for line in lines:
        _, mark, text = line.text.partition(MARK)
        if mark:
            told = json.loads(text)
            found.append(
                Told(str(told["event"]), line.attempt, float(told["t"]), int(told.get("step", 0)), told.get("fault"))
            )
    return sorted(found, key=lambda t: (t.attempt, t.at))


def by_attempt(view: Mapping[str, Any], name: str, times: Mapping[str, Any] | None = None) -> dict[int, Steps]:
    """A metric's points told apart by attempt; with `times`, when each was made in place of its value."""
    starts = sorted(((int(a), int(step)) for a, step in view["starts"].items()), reverse=True)
    found: dict[int, Steps] = {}
    kept, ghosts = view["metrics"].get(name, []), (view.get("ghosts") or {}).get(name, [])
    whens = [] if times is None else [*times["metrics"].get(name, []), *(times.get("ghosts") or {}).get(name, [])]
    for number, row in enumerate([*kept, *ghosts]):
        step = int(row[0])
        attempt = int(row[2]) if len(row) > 2 else next((a for a, start in starts if step >= start), 1)
        found.setdefault(attempt, {})[step] = row[1] if times is None else float(whens[number][0])
    return found
