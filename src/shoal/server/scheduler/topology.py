"""Slots that are connected well: GPUs of one NVLink island, else of one NUMA node. Pure.

A node gets slots of one island if any island has as many free, the tightest such island, so that large islands stay whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from shoal.server.scheduler.model import MachineState

Place = tuple[int | None, int | None]
"""NVLink island and NUMA node of a slot; None if unknown."""
_LEVELS: tuple[Callable[[Place], Hashable], ...] = (
    lambda place: place,
    lambda place: place[0] if place[0] is not None else ("numa", place[1]),
    lambda place: ("numa", place[1]),
)
"""Groups that a node should not leave, the tightest first. The second are the islands."""
_MOST_CACHED = 4096
_UNKNOWN: Place = (None, None)


class Topology:
    """Islands of all machines on which slots differ in their place."""

    def __init__(self, machines: Iterable[MachineState]):
        self._layouts = {m.name: _layout(tuple(m.places.items())) for m in machines if m.places}

    def __bool__(self) -> bool:
        return bool(self._layouts)

    def largest(self, machine: str, free: Sequence[int]) -> int:
        """Return the number of free slots in the island that has most of them."""
        layout = self._layouts.get(machine)
        return len(free) if layout is None else layout.largest(tuple(free))

    def pick(self, machine: str, free: Sequence[int], count: int) -> list[int]:
        """Return `count` of these slots for one node, of one island if possible."""
        layout = self._layouts.get(machine)
        if layout is None or count >= len(free):
            return list(free[:count])
        return list(layout.pick(tuple(free), count))


class _Layout:
    """The places of the slots of machines that are built alike. Answers are cached: most machines of a pool are alike."""

    def __init__(self, places: Mapping[int, Place]):
        self._keys = [{slot: level(place) for slot, place in places.items()} for level in _LEVELS]
        self._otherwise = [level(_UNKNOWN) for level in _LEVELS]
        self.largest = functools.lru_cache(_MOST_CACHED)(self._largest)
        self.pick = functools.lru_cache(_MOST_CACHED)(self._pick)

    def _largest(self, free: tuple[int, ...]) -> int:
        return max((len(group) for group in self._groups(free, 1)), default=0)

    def _pick(self, free: tuple[int, ...], count: int) -> tuple[int, ...]:
        for level in range(len(_LEVELS)):
            holding = [group for group in self._groups(free, level) if len(group) >= count]
            if holding:
                return self._from_few(min(holding, key=lambda group: (len(group), group[0])), count)
        return self._from_few(free, count)

    def _from_few(self, slots: Sequence[int], count: int) -> tuple[int, ...]:
        """Return slots from as few of the tightest groups as possible: the largest groups first."""
        groups = sorted(self._groups(slots, 0), key=lambda group: (-len(group), group[0]))
        return tuple(sorted([slot for group in groups for slot in group][:count]))

    def _groups(self, slots: Iterable[int], level: int) -> list[list[int]]:
        keys, otherwise = self._keys[level], self._otherwise[level]
        found: dict[Hashable, list[int]] = {}
        for slot in slots:
            found.setdefault(keys.get(slot, otherwise), []).append(slot)
        return list(found.values())


@functools.lru_cache(1024)
def _layout(places: tuple[tuple[int, Place], ...]) -> _Layout:
    return _Layout(dict(places))
