"""How times, sizes and numbers are shown on pages."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from shoal.core.schema import utcnow as now

__all__ = ["ago", "clock", "compact", "duration", "filesize", "iso", "now", "number", "plural"]

_STEPS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def ago(moment: datetime) -> str:
    """The browser keeps it up to date (app.js)."""
    seconds = (now() - moment).total_seconds()
    if seconds < 5:
        return "just now"
    return f"{_coarse(seconds)} ago" if seconds < 30 * 86_400 else f"{moment:%Y-%m-%d}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for at, (unit, size) in enumerate(_STEPS[:-1]):
        if whole >= size:
            below, part = _STEPS[at + 1]
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def filesize(count: int | float) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def number(value: float | int | None) -> str:
    """Short, and the same for any magnitude: 1,234 · 0.0312 · 3.2e-05."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"


def compact(value: Any) -> str:
    """Any JSON value on one line; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _coarse(seconds: float) -> str:
    for unit, size in _STEPS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} day{'s' if count > 1 else ''}" if unit == "d" else f"{count} {unit}"
    return "0 s"
