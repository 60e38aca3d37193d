"""Smoothing and buckets of a series, computed from all its points before a chart's worth of them is chosen.

The smoothed value at a step is the mean of all values up to it, each weighted by weight ** (distance / unit): an exponential
moving average over steps. The unit is 1/200 of the steps from first to last, or the mean distance of two points where the
points are fewer than that; so a chart of a million points looks as smooth as one of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.server.metrics.columns import Floats, Ints, wire

UNITS = 200
"""Number of units into which the steps of a long series are divided for smoothing."""


def bucket_ends(total: int, size: int) -> Ints:
    """Return the index of the last point of each bucket of `size` points; the last bucket may be smaller."""
    return np.append(np.arange(size - 1, total - 1, size, dtype=np.int64), np.int64(total - 1))


def smoothed(
    steps: Ints, values: Floats, weight: float, size: int, first: int = 0, end: int | None = None
) -> list[float | None]:
    """Return the smoothed value at the end of each bucket; None for a bucket without a finite value.

    `first` and `end` select the points that are shown. The points before them still count, and the unit is that of the
    whole series: a part of a curve is the same curve.

    Each bucket's weighted sums are taken relative to its own last step, which keeps them from underflowing however long
    the series is; a scan over the buckets then carries the sums on.
    """
    rate = _rate(steps, weight)
    state = _carried(steps, values, first, rate)
    steps, values = steps[first:end], values[first:end]
    return [None if v is None else _short(v) for v in _scan(steps, values, bucket_ends(len(values), size), rate, state)]


def smoothed_at(steps: Ints, values: Floats, weight: float, places: Ints) -> Floats:
    """Return the smoothed value at each of the points with these rising indexes; NaN where there is none before."""
    stop = int(places[-1]) + 1
    found = _scan(steps[:stop], values[:stop], places, _rate(steps, weight), (0.0, 0.0))
    return np.array([math.nan if v is None else v for v in found])


def _scan(steps: Ints, values: Floats, ends: Ints, rate: float, state: tuple[float, float]) -> Iterator[float | None]:
    """Yield the smoothed value at the end of each bucket. `ends`: indexes of the last points of buckets, the last one that of all.

    `state`: weighted sum and weights of the points before.
    """
    total, norm = state
    starts = np.concatenate([[0], ends[:-1] + 1])
    last = steps[ends]
    pull = _pull(steps, ends - starts + 1, last, rate)
    finite = np.isfinite(values)
    if not finite.all():
        pull, values = np.where(finite, pull, 0.0), np.where(finite, values, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(pull * values, starts).tolist()
    norms = np.add.reduceat(pull, starts).tolist()
    has_value = np.add.reduceat(finite.astype(np.int64), starts).tolist()
    decays = np.exp(-np.diff(last, prepend=steps[:1]) * rate).tolist()
    for decay, part, part_norm, count in zip(decays, sums, norms, has_value, strict=True):
        total, norm = total * decay + part, norm * decay + part_norm
        yield total / norm if count and norm > 0 else None


def buckets(x: NDArray[Any], values: Floats, size: int) -> list[list[Any]]:
    """Return [first x, last x, count, min, mean, max, last] of each bucket; count to max are of its finite values."""
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


def _carried(steps: Ints, values: Floats, first: int, rate: float) -> tuple[float, float]:
    """Return the weighted sum and the weights of the points before `first`, as they count at that point."""
    if not first:
        return 0.0, 0.0
    pull = np.exp((steps[:first] - steps[first]) * rate)
    finite = np.isfinite(values[:first])
    with np.errstate(over="ignore", invalid="ignore"):
        total = float((pull * np.where(finite, values[:first], 0.0)).sum())
    return total, float(pull[finite].sum())


def _pull(steps: Ints, counts: Ints, last: Ints, rate: float) -> Floats:
    """Return the weight of each point at the end of its bucket."""
    gaps = np.diff(steps)
    if len(gaps) and gaps.min() == gaps.max() and (counts[:-1] == counts[0]).all() and counts[-1] <= counts[0]:
        # Evenly spaced, as most runs are: all full buckets have the same weights, which saves computing exponentials.
        one = np.exp(np.arange(1 - int(counts[0]), 1) * (int(gaps[0]) * rate))
        return np.concatenate([np.tile(one, len(counts) - 1), one[len(one) - int(counts[-1]) :]])
    pull: Floats = np.exp((steps - np.repeat(last, counts)) * rate)
    return pull


def _rate(steps: Ints, weight: float) -> float:
    """Return the rate at which a value's weight decreases per step."""
    span = int(steps[-1]) - int(steps[0])
    return -math.log(weight) * min(len(steps) - 1, UNITS) / span if span > 0 else 0.0


def _short(value: float) -> float | None:
    """Return a value with eight digits, enough for any chart; None if a sum of huge values has overflowed."""
    return float(f"{value:.8g}") if math.isfinite(value) else None
