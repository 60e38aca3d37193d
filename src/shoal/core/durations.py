"""Lengths of time as people type them, and back."""

from __future__ import annotations

import re

from shoal.core.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d|w)?")
_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_COMPOUND = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:sec|min|s|m|h|d|w)\s*)+")
_LONGEST_S = 3650 * 86_400


def parse_duration(text: str, option: str) -> float:
    """`90s`, `30m`, `1h30m`, `2d`, or plain seconds."""
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    elif _COMPOUND.fullmatch(cleaned):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(cleaned))
    else:
        raise UsageError(f"{option} {text!r} is not a length of time.", hint=f"Like this: {option} 90s, 30m, 8h or 2d")
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"{option} {text!r} must be more than nothing and at most ten years.")
    return seconds


def short_duration(seconds: int) -> str:
    """In the largest unit that holds it exactly: 28800 is `8h`, 90 is `90s`."""
    unit = next(u for u in ("d", "h", "m", "s") if seconds % _UNITS[u] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"
