"""Choice of the columns of a table that fit on a terminal. Pure functions; `output.py` prints the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MIN_TEXT, MAX_TEXT = 20, 40
"""Bounds for the width of a column of sentences, which wraps between words: its longest word decides within them."""
GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table. The value's type decides its format (times are relative on a terminal, ISO in a pipe).

    A pipe and --wide get all columns. On a terminal, ids are omitted; without enough room, the columns with the highest
    `rank` are omitted too, the last ones first. Columns of rank 0 are always shown.
    """

    title: str
    value: Callable[[Any], Any]
    is_status: bool = False
    is_right: bool = False
    rank: int = 0
    is_id: bool = False
    is_text: bool = False
    """True for sentences, which may wrap over several lines."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of fitting a table to a width; columns are given by index."""

    shown: list[int]
    left_out: list[int]
    """Columns omitted because there was no room; does not include ids."""
    fits: bool
    """False if even the remaining columns are wider than the terminal, so that long names must be folded."""


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> Fit:
    """Omit columns until the rest fits into `width`. `cells` has a list of texts for each row.

    Sentences of up to MAX_TEXT stay on one line if no column of sentences has to be omitted for it; otherwise they wrap.
    """
    found = _fit(columns, cells, width, MAX_TEXT)
    if found.fits and not any(columns[i].is_text for i in found.left_out):
        return found
    return _fit(columns, cells, width, MIN_TEXT)


def _fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int, whole_text: int) -> Fit:
    shown = [i for i, column in enumerate(columns) if not column.is_id]
    least = {i: _least(columns[i], [row[i] for row in cells], whole_text) for i in shown}
    left_out: list[int] = []
    while sum(least[i] for i in shown) + GAP * (len(shown) - 1) > width:
        spare = [i for i in shown if columns[i].rank > 0]
        if not spare:
            return Fit(shown, sorted(left_out), fits=False)
        # Empty columns are omitted before all others.
        first = max(spare, key=lambda i: (not _has_values(cells, i), columns[i].rank, i))
        shown.remove(first)
        left_out.append(first)
    return Fit(shown, sorted(left_out), fits=True)


def natural_width(columns: Sequence[Column], cells: Sequence[Sequence[str]], gap: int = GAP) -> int:
    """Return the width at which no cell wraps."""
    widths = [max([_cells(c.title), *(_cells(row[i]) for row in cells)]) for i, c in enumerate(columns)]
    return sum(widths) + gap * (len(columns) - 1)


def _least(column: Column, texts: Sequence[str], whole_text: int) -> int:
    """Return the smallest width of a column; sentences up to `whole_text` are not wrapped."""
    whole = max([_cells(column.title), *map(_cells, texts)])
    if not column.is_text or whole <= whole_text:
        return whole
    longest = max((_cells(word) for text in texts for word in text.split()), default=0)
    return max(_cells(column.title), min(max(longest, MIN_TEXT), MAX_TEXT))


def _has_values(cells: Sequence[Sequence[str]], index: int) -> bool:
    return any(row[index] != "–" for row in cells)


def _cells(text: str) -> int:
    """Return the number of terminal cells of a text; wide characters take two."""
    from rich.cells import cell_len

    return cell_len(text)
