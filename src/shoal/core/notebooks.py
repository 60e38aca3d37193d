"""Notebooks converted to scripts: the receipt says for each cell what became of it.

Also requests to fetch a notebook from a URL.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from shoal.core.artifacts import SourceView
from shoal.core.schema import Schema, View

RECEIPT_SUFFIX = ".receipt.json"
"""Suffix of a receipt's file name: the receipt of `train.py` is `train.receipt.json` beside it."""


class Fate(StrEnum):
    """Result of the conversion for a cell or a line."""

    KEPT = "kept"
    TURNED = "turned"
    """Replaced by code that does the same in a job."""
    DROPPED = "dropped"
    DECISION = "decision"
    """A job cannot do this in the way the notebook does; a person must decide what to do instead."""


class CellChange(View):
    """One line of a cell that was changed in the script."""

    line: int
    """Line number in the cell, counted from 1."""
    was: str
    fate: Fate
    text: str
    """Replacement of the line, or the reason why it was removed or cannot stay."""
    hint: str | None = None
    """The next thing to do, if possible a command."""


class CellReceipt(View):
    """Result of the conversion of one cell."""

    number: int
    """Number of the cell, counted from 1 over cells of all kinds."""
    kind: Literal["code", "markdown", "raw"]
    ran_as: int | None
    """Number of the cell in the order of execution, as stored in the notebook."""
    fate: Fate
    text: str
    changes: list[CellChange] = []
    script_line: int | None = None
    """Line of the script after which the cell's first line follows; None if nothing of the cell is in the script."""


class Receipt(View):
    """Result of the conversion of a notebook."""

    version: int = 1
    notebook: str
    script: str
    requirements: list[str]
    cells: list[CellReceipt]
    notes: list[str] = []
    """Notes about the notebook as a whole."""

    @property
    def decisions(self) -> list[CellReceipt]:
        """Return the cells that need a decision by a person."""
        return [cell for cell in self.cells if cell.fate == Fate.DECISION]

    @property
    def is_runnable(self) -> bool:
        """Return whether anything of the notebook is in the script."""
        return any(cell.script_line is not None for cell in self.cells)


class NotebookFetch(Schema):
    """A request to the server to fetch a notebook, convert it to a script, and store that as a source."""

    url: str = Field(min_length=1, max_length=2048)
    token: str | None = Field(default=None, max_length=4096)
    """The user's own token for a notebook that is not public. It is sent only to the URL's host and never stored."""
    entry_cell: str | None = Field(default=None, max_length=255)
    """Cells to convert: 3, 2-7, 4-, or the name of a tag; separate several with commas. None: all cells."""


class NotebookSource(View):
    """The source made from a notebook."""

    source: SourceView
    entry: str
    """Path of the script in the source."""
    receipt: Receipt
