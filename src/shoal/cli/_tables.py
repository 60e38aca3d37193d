"""Which columns of a table a terminal has room for. All pure; `_output` prints them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MIN_TEXT, MAX_TEXT = 20, 40
"""A column of sentences wraps between words, down to the width of its longest word within these bounds."""
GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; the value's type decides how it is shown (times relative on a terminal, ISO in a pipe).

    A pipe and --wide get all columns. On a terminal ids are left out, and where there is no room the columns with the
    highest `rank`, the last ones first. Columns of rank 0 stay.
    """

    title: str
    value: Callable[[Any], Any]
    is_status: bool = False
    is_right: bool = False
    rank: int = 0
    is_id: bool = False
    is_text: bool = False
    """Sentences, which may go over several lines."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The columns that are shown, by index, and how."""

    shown: list[int]
    left_out: list[int]
    """For want of room; ids are not among them."""
    fits: bool
    """False where even what stays is wider than the terminal, so that long names have to be folded."""


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> Fit:
    """Leave out columns until the rest fits into `width`. `cells` holds a list of texts for each row.

    Short sentences stay on one line if that costs none of the sentences; else they wrap.
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
        # An empty column says nothing: it goes before all others.
        first = max(spare, key=lambda i: (not _says_anything(cells, i), columns[i].rank, i))
        shown.remove(first)
        left_out.append(first)
    return Fit(shown, sorted(left_out), fits=True)


def natural_width(columns: Sequence[Column], cells: Sequence[Sequence[str]], gap: int = GAP) -> int:
    """The width at which nothing is wrapped."""
    widths = [max([_cells(c.title), *(_cells(row[i]) for row in cells)]) for i, c in enumerate(columns)]
    return sum(widths) + gap * (len(columns) - 1)


def _least(column: Column, texts: Sequence[str], whole_text: int) -> int:
    """The smallest width a column may have; sentences up to `whole_text` are not wrapped."""
    whole = max([_cells(column.title), *map(_cells, texts)])
    if not column.is_text or whole <= whole_text:
        return whole
    longest = max((_cells(word) for text in texts for word in text.split()), default=0)
    return max(_cells(column.title), min(max(longest, MIN_TEXT), MAX_TEXT))


def _says_anything(cells: Sequence[Sequence[str]], index: int) -> bool:
    return any(row[index] != "–" for row in cells)


def _cells(text: str) -> int:
    """Cells of a terminal; wide characters take two."""
    from rich.cells import cell_len

    return cell_len(text)
