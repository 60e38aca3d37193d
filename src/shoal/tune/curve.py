"""Best value of a trial's metric after each report, for comparisons. Only improvements are stored."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import overload

from shoal.core.sweeps import Direction

Improvement = tuple[int, float]
"""Number of the report, counted from 1, and its value."""


class Curve(Sequence[float]):
    """Sequence of a trial's values in which each is replaced by the best value up to it."""

    def __init__(self, direction: Direction, improvements: Iterable[Sequence[float]] = (), count: int = 0):
        self._is_min = direction == "min"
        pairs = [(int(at), float(value)) for at, value in improvements]
        self._at, self._values = [at for at, _ in pairs], [value for _, value in pairs]
        self._count = count

    @classmethod
    def of(cls, values: Sequence[float], direction: Direction) -> Curve:
        """Return the curve of all values so far; a Curve is returned unchanged."""
        if isinstance(values, cls):
            return values
        curve = cls(direction)
        curve.add(values)
        return curve

    @property
    def best(self) -> float | None:
        return self._values[-1] if self._values else None

    @property
    def improvements(self) -> list[Improvement]:
        return list(zip(self._at, self._values, strict=True))

    def add(self, values: Iterable[float]) -> None:
        """Add reports. A value that is not finite counts as a report, but never as an improvement."""
        for value in values:
            self._count += 1
            if math.isfinite(value) and self._improves(value):
                self._at.append(self._count)
                self._values.append(value)

    def _improves(self, value: float) -> bool:
        if not self._values:
            return True
        return value < self._values[-1] if self._is_min else value > self._values[-1]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        found = bisect_right(self._at, index % self._count + 1)
        return self._values[found - 1] if found else math.nan
