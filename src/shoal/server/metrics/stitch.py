"""Joining of several attempts to one history, and thinning of millions of points to those of a chart.

A point is a ghost (replaced) when a later point of its series is at the same or an earlier step, or when a later attempt began
at or before its step: that attempt resumed from an older checkpoint, and its points replace the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.server.metrics.columns import Floats, Ints

END = np.iinfo(np.int64).max


def cutoffs(starts: Mapping[int, int]) -> dict[int, int]:
    """Return attempt → first step at which a later attempt replaces it. `starts`: attempt → first step."""
    found: dict[int, int] = {}
    lowest = int(END)
    for attempt in sorted(starts, reverse=True):
        found[attempt] = lowest
        lowest = min(lowest, starts[attempt])
    return found


def kept(steps: Sequence[Ints], bounds: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask of the points that are not replaced. `steps`, `bounds`: of each part, oldest attempt first."""
    joined = np.concatenate(steps) if len(steps) > 1 else steps[0]
    limit = np.repeat(np.array(bounds, np.int64), [len(s) for s in steps])
    mask: NDArray[np.bool_] = joined < limit
    if not (np.diff(joined) > 0).all():
        later = np.minimum.accumulate(joined[::-1])[::-1]
        mask[:-1] &= joined[:-1] < later[1:]
    return mask


def bucket_size(total: int, count: int | None) -> int:
    """Return the points per bucket when `total` points are thinned to about `count`; two of each bucket are kept."""
    return 1 if count is None or count >= total else -(-total // max(1, (count - 2) // 2))


def thin(values: NDArray[Any], count: int) -> Ints:
    """Return the indexes of about `count` points: lowest, highest and first NaN of every bucket, and both ends."""
    total = len(values)
    if count >= total:
        return np.arange(total)
    if values.dtype == object:
        return np.unique(np.linspace(0, total - 1, max(count, 2)).astype(np.int64))
    size = bucket_size(total, count)
    whole = total - total % size
    grid = values[:whole].reshape(-1, size)
    bases = np.arange(0, whole, size)
    holes = np.isnan(grid)
    if holes.any():
        low = np.where(holes, np.inf, grid).argmin(1)
        high = np.where(holes, -np.inf, grid).argmax(1)
        nans = (bases + holes.argmax(1))[holes.any(1)]
    else:
        low, high, nans = grid.argmin(1), grid.argmax(1), np.empty(0, np.int64)
    ends = np.array([0, total - 1], np.int64)
    rest = whole + thin_rest(values[whole:])
    return np.unique(np.concatenate([bases + low, bases + high, nans, rest, ends]))


def thin_rest(values: Floats) -> Ints:
    """Return the indexes of the lowest and the highest value of the last, smaller bucket."""
    finite = np.nonzero(~np.isnan(values))[0]
    if not len(finite):
        return np.arange(min(1, len(values)))
    return np.array([finite[values[finite].argmin()], finite[values[finite].argmax()]], np.int64)


def due_merges(counts: Sequence[int], *, fan_in: int = 16, full: int = 1 << 16) -> list[tuple[int, int]]:
    """Return [from, to) ranges of neighbouring blocks of similar size that should be merged.

    No result is larger than `full`.
    """
    found = []
    start = 0
    while start < len(counts):
        level, total, end = _level(counts[start], fan_in), 0, start
        while end < len(counts) and _level(counts[end], fan_in) == level and total + counts[end] <= full:
            total += counts[end]
            end += 1
        if end - start >= fan_in:
            found.append((start, end))
        start = max(end, start + 1)
    return found


def _level(count: int, fan_in: int) -> int:
    level, size = 0, fan_in * fan_in
    while count >= size:
        level, size = level + 1, size * fan_in
    return level
