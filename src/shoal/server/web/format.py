"""Formatting of times, sizes and numbers on pages."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from shoal.core import durations
from shoal.core.durations import ago
from shoal.core.money import MILLION, amount
from shoal.core.schema import utcnow as now

__all__ = ["ago", "clock", "compact", "duration", "filesize", "iso", "money", "now", "number", "plural"]


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float | None) -> str:
    return "–" if seconds is None else durations.duration(seconds)


def filesize(count: int | float) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def number(value: float | int | None) -> str:
    """Format a number briefly at any magnitude: 1,234 · 0.0312 · 3.2e-05."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"


def money(value: float) -> str:
    return amount(round(value * MILLION))


def compact(value: Any) -> str:
    """Format any JSON value on one line; text stays unchanged."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
