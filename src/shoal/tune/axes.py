"""Search space as a box of numbers: choices by their index, the parameters of a group as one axis."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.sweeps import Axis, Between, Choice, Params

Place = dict[str, Any]
"""Axis → index of a choice, or number in a range."""


@dataclass(slots=True, frozen=True)
class Choices:
    """Rows of values for one or more parameters; one row is chosen by its index."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_ordered: bool
    """True if the values are sorted numbers, so that neighbours are similar."""


class Box:
    """Search space of one sweep."""

    def __init__(self, space: Mapping[str, Axis]):
        self._names = list(space)
        self.axes: dict[str, Choices | Between] = dict(_axes(space))

    @property
    def size(self) -> int | None:
        """Number of places; None if infinite."""
        sizes = [_size(axis) for axis in self.axes.values()]
        return math.prod(n for n in sizes if n is not None) if None not in sizes else None

    def params(self, place: Place) -> Params:
        values: Params = {}
        for key, axis in self.axes.items():
            if isinstance(axis, Between):
                values[key] = place[key]
            else:
                values.update(zip(axis.names, axis.rows[place[key]], strict=True))
        return {name: values[name] for name in self._names}

    def place(self, params: Params) -> Place:
        found: Place = {}
        for key, axis in self.axes.items():
            if isinstance(axis, Between):
                found[key] = params[key]
            else:
                found[key] = axis.rows.index(tuple(params[name] for name in axis.names))
        return found

    def key(self, place: Place) -> tuple[Any, ...]:
        return tuple(place[key] for key in self.axes)

    def at(self, parts: Sequence[float]) -> Place:
        """Return the place at these fractions (0 to 1) of the axes, one for each axis."""
        return {key: _at(axis, part) for (key, axis), part in zip(self.axes.items(), parts, strict=True)}

    def not_among(self, taken: set[tuple[Any, ...]], draws: random.Random) -> Place | None:
        """Return a place that is not in `taken`; None if there is none, or if there are infinitely many."""
        if self.size is None or len(taken) >= self.size:
            return None
        start = draws.randrange(self.size)
        places = (self._numbered((start + ahead) % self.size) for ahead in range(self.size))
        return next(place for place in places if self.key(place) not in taken)

    def _numbered(self, number: int) -> Place:
        found: Place = {}
        for key, axis in self.axes.items():
            number, at = divmod(number, _size(axis) or 1)
            found[key] = int(axis.low) + at if isinstance(axis, Between) else at
        return found


def _axes(space: Mapping[str, Axis]) -> Iterator[tuple[str, Choices | Between]]:
    groups: dict[str, dict[str, list[Any]]] = {}
    for name, axis in space.items():
        if isinstance(axis, Between):
            yield name, axis
        elif axis.group is not None:
            groups.setdefault(axis.group, {})[name] = axis.values
        else:
            yield name, _choices(name, axis)
    for group, members in groups.items():  # \0: no parameter has such a name
        rows = tuple(zip(*members.values(), strict=True))
        yield f"\0{group}", Choices(tuple(members), rows, is_ordered=False)


def _choices(name: str, axis: Choice) -> Choices:
    values: list[Any] = axis.values
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    is_ordered = len(numbers) == len(values) > 2
    return Choices((name,), tuple((v,) for v in (sorted(numbers) if is_ordered else values)), is_ordered)


def _size(axis: Choices | Between) -> int | None:
    if isinstance(axis, Choices):
        return len(axis.rows)
    return int(axis.high) - int(axis.low) + 1 if axis.whole else None


def _at(axis: Choices | Between, part: float) -> float | int:
    if isinstance(axis, Choices):
        return min(int(part * len(axis.rows)), len(axis.rows) - 1)
    low, high = axis.low, axis.high + axis.whole  # + 1, so that the last integer is as likely as the others
    found = math.exp(math.log(low) + part * math.log(high / low)) if axis.log else low + part * (high - low)
    return min(int(found), int(axis.high)) if axis.whole else min(max(found, axis.low), axis.high)
