"""Smoothing and buckets of a series, computed from all its points before a chart's worth of them is chosen.

The smoothed value at a step is the mean of all values up to it, each weighted by weight ** (distance / unit): an exponential
moving average over steps. The unit is 1/200 of the steps from first to last, or the mean distance of two points where the
points are fewer than that; so a chart of a million points looks as smooth as one of a thousand.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.server.metrics.columns import Floats, Ints, wire

UNITS = 200
"""A long series is smoothed in units of one part in so many of its steps."""


def bucket_ends(total: int, size: int) -> Ints:
    """The index of the last point of each bucket of `size` points; the last bucket may be smaller."""
    return np.append(np.arange(size - 1, total - 1, size, dtype=np.int64), np.int64(total - 1))


def smoothed(steps: Ints, values: Floats, weight: float, size: int) -> list[float | None]:
    """The smoothed value at the end of each bucket; None where a bucket holds no finite value.

    Each bucket's weighted sums are taken relative to its own last step, which keeps them from underflowing however long
    the series is; a scan over the buckets then carries the sums on.
    """
    ends = bucket_ends(len(values), size)
    starts = np.concatenate([[0], ends[:-1] + 1])
    rate = _rate(steps, weight)
    last = steps[ends]
    pull = _pull(steps, ends - starts + 1, last, rate)
    finite = np.isfinite(values)
    if not finite.all():
        pull, values = np.where(finite, pull, 0.0), np.where(finite, values, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(pull * values, starts).tolist()
    norms = np.add.reduceat(pull, starts).tolist()
    has_value = np.add.reduceat(finite.astype(np.int64), starts).tolist()
    decays = np.exp(-np.diff(last, prepend=last[:1]) * rate).tolist()
    found: list[float | None] = []
    total = norm = 0.0
    for decay, part, part_norm, count in zip(decays, sums, norms, has_value, strict=True):
        total, norm = total * decay + part, norm * decay + part_norm
        found.append(_short(total / norm) if count and norm > 0 else None)
    return found


def buckets(x: NDArray[Any], values: Floats, size: int) -> list[list[Any]]:
    """[first x, last x, count, min, mean, max, last] of each bucket; count, min, mean and max are of its finite values."""
    ends = bucket_ends(len(values), size)
    starts = np.concatenate([[0], ends[:-1] + 1])
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(np.where(finite, values, 0.0), starts) / np.maximum(counts, 1)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    columns = (x[starts], x[ends], counts, low, sums, high, values[ends])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        [first, until, count, *([least, _short(mean), most] if count else [None] * 3), wire(last)]
        for first, until, count, least, mean, most, last in rows
    ]


def _pull(steps: Ints, counts: Ints, last: Ints, rate: float) -> Floats:
    """The weight of each point at the end of its bucket."""
    gaps = np.diff(steps)
    if len(gaps) and gaps.min() == gaps.max():
        # Evenly spaced, as most runs are: all full buckets have the same weights, and the exponentials are the costly part.
        one = np.exp(np.arange(1 - int(counts[0]), 1) * (int(gaps[0]) * rate))
        return np.concatenate([np.tile(one, len(counts) - 1), one[len(one) - int(counts[-1]) :]])
    pull: Floats = np.exp((steps - np.repeat(last, counts)) * rate)
    return pull


def _rate(steps: Ints, weight: float) -> float:
    """How fast a value's weight falls, per step."""
    span = int(steps[-1]) - int(steps[0])
    return -math.log(weight) * min(len(steps) - 1, UNITS) / span if span > 0 else 0.0


def _short(value: float) -> float | None:
    """Eight digits, which no chart can tell from more; None where a sum of huge values has overflowed."""
    return float(f"{value:.8g}") if math.isfinite(value) else None
