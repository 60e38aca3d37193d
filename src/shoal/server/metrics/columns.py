"""Points of one series as packed columns. Each is compressed separately, so that a chart reads only those it shows.

Steps, times (ms) and arrivals are stored as differences, which compress to almost nothing when they grow evenly.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

_HEAD = struct.Struct("<BIIIII")
_NUMBERS, _MIXED = 1, 2
_local = threading.local()

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Points:
    """Points in order of arrival. `values` holds floats, or numbers and strings if any value is a string.

    Without times or arrivals, use `steps` for them too: a column that is the same object is sliced and joined only once.
    """

    steps: Ints
    times: Floats | Ints
    values: NDArray[Any]
    arrivals: Ints

    @property
    def is_mixed(self) -> bool:
        return self.values.dtype == object

    def where(self, mask: NDArray[np.bool_]) -> Points:
        if mask.all():
            return self
        steps = self.steps[mask]
        times = steps if self.times is self.steps else self.times[mask]
        arrivals = steps if self.arrivals is self.steps else self.arrivals[mask]
        return Points(steps, times, self.values[mask], arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Facts about points that are stored beside them, so that the points need not be read."""

    count: int
    step_min: int
    step_max: int
    rising: bool
    value_min: float | None
    value_max: float | None


def points(steps: list[int], times: list[float], values: list[Any], arrival: int = 0) -> Points:
    if any(isinstance(v, str) for v in values):
        column = objects(values)
    else:
        try:
            column = np.array(values, np.float64)
        except OverflowError:
            column = np.array([_nearest(v) for v in values], np.float64)
    return Points(
        np.array(steps, np.int64), np.array(times, np.float64), column, np.full(len(steps), arrival, np.int64)
    )


def objects(values: list[Any]) -> NDArray[Any]:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def summary(found: Points) -> Summary:
    values = np.array([v for v in found.values if isinstance(v, float)]) if found.is_mixed else found.values
    finite = values[np.isfinite(values)] if len(values) else values
    return Summary(
        count=len(found.steps),
        step_min=int(found.steps.min()),
        step_max=int(found.steps.max()),
        rising=bool((np.diff(found.steps) > 0).all()),
        value_min=float(finite.min()) if len(finite) else None,
        value_max=float(finite.max()) if len(finite) else None,
    )


def pack(found: Points, *, with_arrivals: bool = False) -> bytes:
    """Return the points as bytes. Arrivals are left out if all are the same; then they are stored beside the body."""
    millis = np.round(found.times * 1000).astype(np.int64)
    if found.is_mixed:
        values = json.dumps([wire(v) for v in found.values.tolist()]).encode()
    else:
        values = found.values.astype("<f8").tobytes()
    parts = [_squeeze(p) for p in (_deltas(found.steps), _deltas(millis), values)]
    parts.append(_squeeze(_deltas(found.arrivals)) if with_arrivals else b"")
    form = _MIXED if found.is_mixed else _NUMBERS
    return _HEAD.pack(form, len(found.steps), *map(len, parts)) + b"".join(parts)


class Block:
    """Packed points; each column is unpacked on first use."""

    def __init__(self, body: bytes, arrival: int = 0, seen: dict[bytes, Ints] | None = None):
        """`seen`: cache of unpacked columns, because metrics that are logged together have the same steps and times."""
        self._form, self.count, *sizes = _HEAD.unpack_from(body)
        self._arrival, self._seen = arrival, {} if seen is None else seen
        ends = np.cumsum([_HEAD.size, *sizes]).tolist()
        self._parts = [memoryview(body)[a:b] for a, b in itertools.pairwise(ends)]

    @cached_property
    def steps(self) -> Ints:
        return self._ints(0)

    @cached_property
    def times(self) -> Floats:
        return self._ints(1) / 1000

    @cached_property
    def values(self) -> NDArray[Any]:
        plain = self._plain(2)
        if self._form == _MIXED:
            return objects([number(v) for v in json.loads(plain)])
        return np.frombuffer(plain, "<f8")

    @cached_property
    def arrivals(self) -> Ints:
        if not len(self._parts[3]):
            return np.full(self.count, self._arrival, np.int64)
        return _sums(self._plain(3))

    @property
    def points(self) -> Points:
        return Points(self.steps, self.times, self.values, self.arrivals)

    def _ints(self, index: int) -> Ints:
        packed = bytes(self._parts[index])
        found = self._seen.get(packed)
        if found is None:
            found = self._seen[packed] = _sums(self._plain(index))
        return found

    def _plain(self, index: int) -> bytes:
        if not hasattr(_local, "decompress"):
            _local.decompress = zstandard.ZstdDecompressor().decompress
        plain: bytes = _local.decompress(self._parts[index])
        return plain


def join(parts: list[Points]) -> Points:
    if len(parts) == 1:
        return parts[0]
    mixed = any(p.is_mixed for p in parts)
    values = [p.values.astype(object) if mixed else p.values for p in parts]
    steps = np.concatenate([p.steps for p in parts])
    times = steps if all(p.times is p.steps for p in parts) else np.concatenate([p.times for p in parts])
    arrivals = steps if all(p.arrivals is p.steps for p in parts) else np.concatenate([p.arrivals for p in parts])
    return Points(steps, times, np.concatenate(values), arrivals)


def wire(value: float | str) -> float | str:
    """Return a value for JSON: numbers that are not finite become text."""
    if isinstance(value, str) or value - value == 0.0:
        return value
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def number(value: Any) -> Any:
    """Return the value of a JSON value (the inverse of `wire`); None if it is neither a number nor text."""
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else value
    return _nearest(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _nearest(value: float) -> float:
    """Return a number as float; infinity for integers that are larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _deltas(values: Ints) -> bytes:
    return np.diff(values, prepend=np.int64(0)).astype("<i8").tobytes()


def _sums(plain: bytes) -> Ints:
    return np.cumsum(np.frombuffer(plain, "<i8"), dtype=np.int64)


def _squeeze(data: bytes) -> bytes:
    if not hasattr(_local, "compress"):
        _local.compress = zstandard.ZstdCompressor(level=1).compress
    made: bytes = _local.compress(data)
    return made
