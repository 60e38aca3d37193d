"""What a workspace has used, faded by age: the measure that fair share goes by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from shoal.server.scheduler.model import RunningJob


def held_slots(running: Iterable[RunningJob]) -> Counter[str]:
    """Workspace → slots its jobs hold."""
    held: Counter[str] = Counter()
    for job in running:
        held[job.workspace] += job.total
    return held


def aged(
    used_s: Mapping[str, float], held: Mapping[str, int], then: float, now: float, half_life_s: float
) -> dict[str, float]:
    """Slot-seconds used by each workspace, `now`, if it held so many slots ever since `then`."""
    fade = math.exp2(-max(0.0, now - then) / half_life_s)
    return {
        workspace: used_s.get(workspace, 0.0) * fade + used_between(held.get(workspace, 0), then, now, now, half_life_s)
        for workspace in sorted(used_s.keys() | held.keys())
    }


def used_between(slots: int, start: float, end: float, now: float, half_life_s: float) -> float:
    """What `slots` held from `start` to `end` count now: the integral of their use, each moment faded by its age."""
    area = half_life_s / math.log(2)
    youngest, oldest = max(0.0, now - end), max(0.0, now - start)
    return slots * area * (math.exp2(-youngest / half_life_s) - math.exp2(-oldest / half_life_s))
