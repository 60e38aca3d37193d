"""Usage of a workspace, discounted by age: the measure on which fair share is based."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from shoal.server.scheduler.model import RunningJob


def held_slots(running: Iterable[RunningJob]) -> Counter[str]:
    """Return workspace → number of slots its jobs hold."""
    held: Counter[str] = Counter()
    for job in running:
        held[job.workspace] += job.total
    return held


def aged(
    used_s: Mapping[str, float], held: Mapping[str, int], then: float, now: float, half_life_s: float
) -> dict[str, float]:
    """Return each workspace's discounted slot-seconds at `now`, given those at `then` and the slots held since."""
    fade = math.exp2(-max(0.0, now - then) / half_life_s)
    return {
        workspace: used_s.get(workspace, 0.0) * fade + used_between(held.get(workspace, 0), then, now, now, half_life_s)
        for workspace in sorted(used_s.keys() | held.keys())
    }


def used_between(slots: int, start: float, end: float, now: float, half_life_s: float) -> float:
    """Return the discounted slot-seconds, as of `now`, of `slots` held from `start` to `end` (the integral over time)."""
    area = half_life_s / math.log(2)
    youngest, oldest = max(0.0, now - end), max(0.0, now - start)
    return slots * area * (math.exp2(-youngest / half_life_s) - math.exp2(-oldest / half_life_s))
