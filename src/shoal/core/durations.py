"""Durations as people type them, and as they are shown to people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise

from shoal.core.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d|w)?")
_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_COMPOUND = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:sec|min|s|m|h|d|w)\s*)+")
_LONGEST_S = 3650 * 86_400
_LONG_AGO_S = 30 * 86_400
_STEPS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def parse_duration(text: str, option: str) -> float:
    """Return the seconds of a duration typed by a person: `90s`, `30m`, `1h30m`, `2d`, or plain seconds from 60 on.

    A small number without a unit is refused: who types 5 most likely means minutes or hours.
    """
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
        if 0 < seconds < _UNITS["m"]:
            raise UsageError(f"{option} {cleaned} has no unit.", hint=f"{option} {cleaned}s, {cleaned}m or {cleaned}h?")
    elif _COMPOUND.fullmatch(cleaned):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(cleaned))
    else:
        raise UsageError(f"{option} {text!r} is not a length of time.", hint=f"Like this: {option} 90s, 30m, 8h or 2d")
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"{option} {text!r} must be longer than 0 s and at most ten years.")
    return seconds


def parse_stall_timeout(text: str | None, option: str) -> int | None:
    """Return JobSpec.stall_timeout_s: seconds, 0 for `never`, or None if no text is given."""
    if not text or text.strip().lower() == "never":
        return 0 if text else None
    return max(1, round(parse_duration(text, option)))


def stall_timeout(seconds: int) -> str:
    """Return JobSpec.stall_timeout_s in the form in which people type it."""
    return short_duration(seconds) if seconds else "never"


def short_duration(seconds: int) -> str:
    """Return whole seconds in the largest unit that expresses them exactly: 28800 is `8h`, 90 is `90s`."""
    unit = next(u for u in ("d", "h", "m", "s") if seconds % _UNITS[u] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def duration(seconds: float) -> str:
    """Return seconds as text for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for (unit, size), (below, part) in pairwise(_STEPS):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Return a moment relative to now: `just now`, `40 s ago`, `in 3 min`, `2 h ago`, `5 days ago`; after a month, the date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < -5:
        return f"in {_coarse(-seconds)}"
    if seconds < 5:
        return "just now"
    return f"{_coarse(seconds)} ago" if seconds < _LONG_AGO_S else moment.astimezone(UTC).strftime("%Y-%m-%d")


def _coarse(seconds: float) -> str:
    unit, size = next((step for step in _STEPS if seconds >= step[1]), _STEPS[-1])
    count = int(seconds // size)
    return f"{count} day{'s' if count > 1 else ''}" if unit == "d" else f"{count} {unit}"
