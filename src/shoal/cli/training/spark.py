"""Sparklines: the curve of a metric as one line of block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(points: Sequence[Sequence[Any]], width: int = 24) -> str:
    """Draw points (x, value) as `▇▅▃▂▁`; strings and values that are not finite leave a gap."""
    values = [(float(p[0]), float(p[1])) for p in points if isinstance(p[1], int | float) and math.isfinite(p[1])]
    if not values:
        return ""
    first, last = values[0][0], values[-1][0]
    cells: list[list[float]] = [[] for _ in range(min(width, len(values)))]
    for x, value in values:
        at = int((x - first) / (last - first) * len(cells)) if last > first else 0
        cells[min(at, len(cells) - 1)].append(value)
    means = [sum(cell) / len(cell) if cell else None for cell in cells]
    known = [m for m in means if m is not None]
    low, span = min(known), max(known) - min(known)
    return "".join(" " if m is None else _BLOCKS[_level(m, low, span)] for m in means)


def number(value: Any) -> str:
    """Format a number with enough digits to compare by eye: `0.1234`, `1.235e-05`, `12345`."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.4g}"


def _level(value: float, low: float, span: float) -> int:
    return min(7, int((value - low) / span * 8)) if span > 0 else 3
