"""Where a pass begins and which rows it has come to, in memory that DataLoader workers share where torch provides it."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

from shoal.data.epochs import Cursor

_SLOTS = 64
_HEAD = 4
CELLS = _HEAD + 3 * _SLOTS
"""Integers a book needs."""


class Book:
    """Readers of one pass write the same numbers into the same cells, so none of them has to wait for another."""

    def __init__(self, cells: MutableSequence[int] | Any):
        self._cells = cells

    def begin(self, epoch: int, start: Cursor) -> None:
        for cell, value in enumerate((epoch, *start)):
            self._cells[cell] = value

    @property
    def epoch(self) -> int:
        return int(self._cells[0])

    @property
    def start(self) -> Cursor:
        return Cursor(*(int(self._cells[cell]) for cell in range(1, _HEAD)))

    def enter(self, epoch: int, row: int, row_start: int) -> None:
        """Note that a row begins there."""
        cell = _HEAD + 3 * (row % _SLOTS)
        self._cells[cell] = -1  # not to be read until all three are written
        self._cells[cell + 1], self._cells[cell + 2] = row, row_start
        self._cells[cell] = epoch

    def cursor(self, position: int) -> Cursor:
        """The position with the last row known to begin at or before it."""
        best = self.start
        for slot in range(_SLOTS):
            epoch, row, row_start = (int(self._cells[_HEAD + 3 * slot + n]) for n in range(3))
            known = epoch == self.epoch and row % _SLOTS == slot
            if known and row_start <= position and row > best.row:
                best = Cursor(position, row, row_start)
        return best._replace(position=position)
