"""Stall detection: decides from observations of the ranks whether a quiet attempt hangs or is only slow.

Pure functions, apart from the clock.
A wrong verdict costs hours of work, so each needs evidence: a stack that has not changed over several observations and, for
ranks that are not known to wait for others, also no CPU time and no bytes read or written by their processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from shoal.agent.workers.frames import names, where
from shoal.core.durations import duration
from shoal.core.stacks import RankStack

FROZEN_S = 60.0
"""Seconds before a rank stopped by a signal counts as hung: it cannot continue by itself, but someone may send SIGCONT."""
PROVEN_S = 600.0
"""Seconds before ranks that wait for an idle one count as hung: NCCL's default timeout, which would end the job anyway."""
LEARNED_S = 120.0
"""Least number of seconds for that if the attempt has never paused for long; a first checkpoint or evaluation may take that."""
_PAUSES = 10.0
"""Factor of the longest pause after which an attempt went on that counts as proof."""
LOOK_AFTER_S = 30.0
_OFTEN_S, _OFTEN_UNTIL_S, _SELDOM_S = 15.0, 120.0, 60.0
_STILL_S, _STILL_LOOKS = 60.0, 3
_FROZEN_LOOKS = 2
_IDLE_CPU = 0.005
"""Largest use of one core that counts as idle: threads of trackers and of the SDK wake up now and then."""
_IDLE_SHARE = 0.5
"""Share of the limit for which a rank must have been idle without interruption, up to now."""
_IDLE_BYTES_S = 4096.0
"""Bytes per second that count as idle: each observation makes the rank write its stacks, tens of kilobytes."""


@dataclass(slots=True)
class Still:
    """Observations of one rank since it was first seen at its current place."""

    about: RankStack
    since: float
    at: float
    looks: int
    idle_since: float
    """Time since which it has used no CPU and transferred no bytes."""
    idle_looks: int

    @property
    def is_unchanged(self) -> bool:
        return self.looks >= _STILL_LOOKS and self.at - self.since >= _STILL_S

    @property
    def is_idle(self) -> bool:
        return self.is_idle_for(_STILL_S)

    def is_idle_for(self, seconds: float) -> bool:
        is_seen = self.is_unchanged and self.idle_looks >= _STILL_LOOKS
        return is_seen and self.at - self.idle_since >= max(seconds, _STILL_S)

    @property
    def waits(self) -> bool:
        """True if the rank is in a collective, or idle in a backward pass, where gradients are averaged."""
        if any("distributed_c10d.py" in frame for frame in self.about.frames):
            return True
        return self.about.inside == "backward" and self.is_idle


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds without progress after which an attempt is ended, by kind of evidence; None: never."""

    frozen_s: float
    proven_s: float
    idle_s: float | None
    anyway_s: float | None


def limits(own_s: int | None, default_s: float, pause_s: float | None = None) -> Limits | None:
    """Return the limits of a job, or None for never. `own_s`: its own limit; None for the server's default, 0 for never.

    `pause_s`: the longest pause after which this attempt went on. The pauses between its steps, evaluations and checkpoints say
    how long a pause may be, so an attempt of short steps is decided sooner.
    """
    if own_s == 0 or (own_s is None and not default_s):
        return None
    longest = default_s if own_s is None else float(own_s)
    proven_s = PROVEN_S if pause_s is None else min(max(_PAUSES * pause_s, LEARNED_S), PROVEN_S)
    return Limits(
        min(FROZEN_S, longest),
        min(proven_s, longest),
        idle_s=longest if own_s is None else None,
        anyway_s=None if own_s is None else longest,
    )


class Stalls:
    """Observations of quiet attempts. In memory: after a restart of the server the evidence is collected again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._seen: dict[str, dict[int, Still]] = {}
        self._asked: dict[str, float] = {}

    def is_due(self, attempt_id: str, quiet_s: float) -> bool:
        """Check whether an attempt is due for another observation; if so, it counts as requested."""
        now = self._clock()
        pause = _OFTEN_S if quiet_s < _OFTEN_UNTIL_S else _SELDOM_S
        if now - self._asked.get(attempt_id, float("-inf")) < pause:
            return False
        self.note_request(attempt_id)
        return True

    def note_request(self, attempt_id: str) -> None:
        self._asked[attempt_id] = self._clock()

    def note(self, attempt_id: str, ranks: Iterable[RankStack]) -> None:
        now = self._clock()
        with self._lock:
            seen = self._seen.setdefault(attempt_id, {})
            for rank in ranks:
                seen[rank.rank] = _follow(seen.get(rank.rank), rank, now)

    def seen(self, attempt_id: str) -> dict[int, Still]:
        with self._lock:
            return dict(self._seen.get(attempt_id, {}))

    def forget(self, attempt_id: str) -> None:
        """Drop the observations of an attempt that makes progress again."""
        with self._lock:
            self._seen.pop(attempt_id, None)
            self._asked.pop(attempt_id, None)

    def keep_only(self, attempts: Collection[str]) -> None:
        with self._lock:  # agents report at the same time
            gone = {*self._seen, *self._asked} - set(attempts)
        for attempt_id in gone:
            self.forget(attempt_id)


def verdict(
    seen: Mapping[int, Still], *, world_size: int, quiet_s: float, limits: Limits, reports_steps: bool
) -> str | None:
    """Return the reason why the attempt must be ended now, or None."""
    if limits.anyway_s is not None and quiet_s >= limits.anyway_s:
        places = f": {_places(seen)}" if seen else ""
        return f"no line, metric or step for {duration(quiet_s)} (its stall timeout){places}"
    if len(seen) < world_size:
        return None
    waiting = {rank: still for rank, still in seen.items() if still.waits}
    others = {rank: still for rank, still in seen.items() if rank not in waiting}
    frozen = sorted(r for r, still in others.items() if still.about.stopped and still.looks >= _FROZEN_LOOKS)
    if frozen and waiting and quiet_s >= limits.frozen_s:
        was = "was" if len(frozen) == 1 else "were"
        return f"{names(frozen)} {was} stopped by a signal (SIGSTOP) for {duration(quiet_s)} {_while(waiting)}"
    if waiting and quiet_s >= limits.proven_s and all(still.is_unchanged for still in waiting.values()):
        idle_s = _IDLE_SHARE * limits.proven_s
        if others and all(still.is_idle_for(idle_s) for still in others.values()):
            made = f"{names(sorted(others))} made no progress for {duration(quiet_s)}"
            return f"{made}{_inside(others)} {_while(waiting)}"
        if not others and world_size > 1 and all(still.is_idle_for(idle_s) for still in waiting.values()):
            return f"no rank made progress for {duration(quiet_s)}: {_places(seen)}"
    if not reports_steps or limits.idle_s is None or quiet_s < limits.idle_s:
        return None
    if all(still.is_idle_for(_IDLE_SHARE * limits.idle_s) for still in seen.values()):
        return f"no line, metric or step for {duration(quiet_s)}, and no rank does anything: {_places(seen)}"
    return None


def _follow(before: Still | None, rank: RankStack, now: float) -> Still:
    if before is None or _key(before.about) != _key(rank):
        return Still(rank, now, now, 1, now, 1)
    span = max(now - before.at, 1e-3)
    idle = (
        rank.cpu_s is not None
        and before.about.cpu_s is not None
        and rank.cpu_s - before.about.cpu_s <= _IDLE_CPU * span
        and abs((rank.moved or 0) - (before.about.moved or 0)) <= _IDLE_BYTES_S * span
    )
    return Still(
        rank,
        before.since,
        now,
        before.looks + 1,
        before.idle_since if idle else now,
        before.idle_looks + 1 if idle else 1,
    )


def _key(about: RankStack) -> tuple[object, ...]:
    return (about.inside, about.at, about.waits, about.note, about.stopped, tuple(about.frames))


def _while(waiting: Mapping[int, Still]) -> str:
    """Return `while ranks 0 and 2 waited in all_reduce, called at train.py:41`, for the largest group."""
    groups = _groups(waiting)
    ranks, about = max(groups, key=lambda group: len(group[0]))
    at = f", called at {about.at}" if about.at else ""
    more = len(waiting) - len(ranks)
    return f"while {names(ranks)} waited in {about.inside}{at}{f', and {more} more elsewhere' if more else ''}"


def _inside(others: Mapping[int, Still]) -> str:
    groups = _groups(others)
    if len(groups) > 1:
        return f" ({_places(others)})"
    about = groups[0][1]
    return f" in {about.inside} at {about.at}" if about.inside else f" ({about.note})"


def _places(seen: Mapping[int, Still]) -> str:
    return "; ".join(f"{names(ranks)} {where(about.model_dump(), len(ranks))}" for ranks, about in _groups(seen))


def _groups(seen: Mapping[int, Still]) -> list[tuple[list[int], RankStack]]:
    found: dict[tuple[object, ...], tuple[list[int], RankStack]] = {}
    for rank, still in sorted(seen.items()):
        about = still.about
        found.setdefault((about.inside, about.at, about.waits, about.note), ([], about))[0].append(rank)
    return list(found.values())
