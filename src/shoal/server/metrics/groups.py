"""Mean of a group of runs, with its spread, at common positions.

A run has a value where it has logged one, and between two of its points the one on the straight line between them; before its first
and after its last point it does not count. Smoothing is that of each run by all its points (see `smooth`), so the smoothed mean is
the same curve at every zoom and resolution, and that of a group of one run is the run's own.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.server.metrics.columns import Floats, Ints
from shoal.server.metrics.reads import Span
from shoal.server.metrics.smooth import smoothed_at


@dataclass(frozen=True, slots=True)
class Line:
    """All points of one run's line, in the order of x."""

    x: Floats
    steps: Ints
    values: Floats
    at: Floats | Ints | None
    """Times of the points, where they are wanted."""

    @property
    def is_rising(self) -> bool:
        """True if each step is larger than the one before: only then can it be smoothed over steps."""
        return len(self.steps) < 2 or bool((np.diff(self.steps) > 0).all())


def mean_of(
    lines: list[Line], *, points: int = 400, span: Span = (None, None), smoothing: float = 0.0
) -> dict[str, Any] | None:
    """Return mean, lowest, highest and spread at about `points` positions within the span; None if no run has a point there."""
    members = [_Member(line) for line in lines if np.isfinite(line.values).any()]
    parts = [member.x[inside(member.x, span)] for member in members]
    count = sum(map(len, parts))
    if not count:
        return None
    grid = np.unique(np.concatenate(parts))
    edges = np.linspace(grid[0], grid[-1], points + 1) if len(grid) > points else None
    if edges is not None:
        grid = (edges[:-1] + edges[1:]) / 2
    table = np.array([member.values_at(grid, edges) for member in members])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        mean, std = np.nanmean(table, 0), np.nanstd(table, 0, ddof=1)
        low, high = np.nanmin(table, 0), np.nanmax(table, 0)
        body = {
            "x": short(grid) if edges is not None else exact(grid), "mean": short(mean), "low": short(low),
            "high": short(high), "std": short(std), "runs": np.isfinite(table).sum(0).tolist(), "count": count,
        }  # fmt: skip
        if smoothing and all(member.line.is_rising for member in members):
            body["smooth"] = short(np.nanmean([member.smoothed_at(grid, smoothing) for member in members], 0))
    return body | {"last": float(np.mean([member.values[-1] for member in members]))}


class _Member:
    """One run of a group: its points that are numbers."""

    def __init__(self, line: Line):
        self.line = line
        self.has = np.nonzero(np.isfinite(line.values))[0]
        self.x, self.values = line.x[self.has], line.values[self.has]

    def values_at(self, grid: Floats, edges: Floats | None) -> Floats:
        """Return its values at positions; with `edges`, the mean of each interval between them that has points."""
        x, values = self.x, self.values
        if edges is not None:
            part = inside(x, (edges[0], edges[-1]))
            before, after = slice(max(0, part.start - 1), part.start), slice(part.stop, part.stop + 1)
            middles, means = _binned(x[part], values[part], edges) if part.stop > part.start else (x[:0], values[:0])
            x = np.concatenate([x[before], middles, x[after]])
            values = np.concatenate([values[before], means, values[after]])
        found: Floats = np.interp(grid, x, values, left=np.nan, right=np.nan)
        return np.where((grid >= self.x[0]) & (grid <= self.x[-1]), found, np.nan)

    def smoothed_at(self, grid: Floats, weight: float) -> Floats:
        """Return its smoothed values at positions: between two points, the one on the straight line between theirs."""
        before = np.clip(np.searchsorted(self.x, grid, side="right") - 1, 0, len(self.x) - 1)
        places = np.unique(np.concatenate([before, np.minimum(before + 1, len(self.x) - 1)]))
        values = smoothed_at(self.line.steps, self.line.values, weight, self.has[places])
        found: Floats = np.interp(grid, self.x[places], values, left=np.nan, right=np.nan)
        return found


def inside(x: Floats, span: Span) -> slice:
    """Return the part of rising positions that is within the span."""
    low, high = span
    first = 0 if low is None else int(np.searchsorted(x, low, side="left"))
    end = len(x) if high is None else int(np.searchsorted(x, high, side="right"))
    return slice(first, max(first, end))


def _binned(x: Floats, values: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return the middle and the mean of each interval that has points."""
    place = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(place, minlength=len(edges) - 1)
    sums = np.bincount(place, values, minlength=len(edges) - 1)
    has = counts > 0
    return ((edges[:-1] + edges[1:]) / 2)[has], sums[has] / counts[has]


def exact(values: Floats | Ints) -> list[float | None]:
    """Return numbers for JSON as they are; None for those that are not finite."""
    if np.isfinite(values).all():
        return list(values.tolist())
    return [v if math.isfinite(v) else None for v in values.tolist()]


def short(values: Floats) -> list[float | None]:
    """Return numbers for JSON with nine digits: a computed mean has no more that mean anything."""
    with np.errstate(all="ignore"):
        scale = 10.0 ** (8 - np.floor(np.log10(np.abs(values))))
        rounded = np.round(values * scale) / scale
    return exact(np.where(np.isfinite(rounded), rounded, values))
