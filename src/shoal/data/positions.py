"""Start of a pass and places it has reached, in memory that DataLoader workers share if torch is installed."""

from __future__ import annotations

import zlib
from typing import Protocol

from shoal.data.order import WIDTHS, Place

_SLOTS = 64
_PLACE = 4 + 2 * WIDTHS[0]
_HEAD = 2 + _PLACE
_SLOT = 2 + _PLACE
CELLS = _HEAD + _SLOTS * _SLOT
"""Number of integers that the positions need."""


class Cells(Protocol):
    def get(self, start: int, end: int) -> list[int]: ...

    def put(self, start: int, values: list[int]) -> None: ...


class ListCells:
    def __init__(self) -> None:
        self._values = [0] * CELLS

    def get(self, start: int, end: int) -> list[int]:
        return self._values[start:end]

    def put(self, start: int, values: list[int]) -> None:
        self._values[start : start + len(values)] = values


class SharedPlaces:
    """Places of one pass in shared memory.

    No lock is needed: all readers of a pass write the same places to the same slots, and a checksum detects a slot that is
    being written.
    """

    def __init__(self, cells: Cells):
        self._cells = cells

    def begin(self, epoch: int, position: int, place: Place) -> None:
        self._cells.put(0, [epoch, position, *flat(place)])

    @property
    def epoch(self) -> int:
        return self._cells.get(0, 1)[0]

    @property
    def start(self) -> tuple[int, Place]:
        """Position of the first sample to yield, and a place at or before it."""
        _, position, *place = self._cells.get(0, _HEAD)
        return position, unflat(place)

    def forget(self) -> None:
        """Delete all places noted so far."""
        self._cells.put(_HEAD, [0] * (CELLS - _HEAD))

    def note(self, epoch: int, place: Place) -> None:
        values = [epoch, *flat(place)]
        slot = _HEAD + _SLOT * (place.taken // WIDTHS[0] % _SLOTS)
        self._cells.put(slot, [_check(values), *values])

    def before(self, position: int) -> Place:
        """Return the last known place at or before a position of this epoch."""
        epoch, best = self.epoch, self.start[1]
        for slot in range(_HEAD, CELLS, _SLOT):
            check, *values = self._cells.get(slot, slot + _SLOT)
            if values[0] != epoch or check != _check(values):
                continue  # from another epoch, or being written
            place = unflat(values[1:])
            if best.at < place.at <= position:
                best = place
        return best


def flat(place: Place) -> list[int]:
    """Return a place as a list of integers of fixed length."""
    cursors = [number for cursor in place.cursors for number in cursor]
    return [place.at, place.turn, place.taken, len(place.cursors), *cursors, *[0] * (_PLACE - 4 - len(cursors))]


def unflat(values: list[int]) -> Place:
    at, turn, taken, cursors = values[:4]
    return Place(at, turn, taken, tuple((values[n], values[n + 1]) for n in range(4, 4 + 2 * cursors, 2)))


def _check(values: list[int]) -> int:
    return zlib.crc32(repr(values).encode())
