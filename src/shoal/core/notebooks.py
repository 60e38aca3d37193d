"""What became of a notebook that was made a script: the receipt, cell by cell, and having one fetched from a URL."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from shoal.core.artifacts import SourceView
from shoal.core.schema import Schema, View

RECEIPT_SUFFIX = ".receipt.json"
"""The receipt of `train.py` is `train.receipt.json` beside it."""


class Fate(StrEnum):
    KEPT = "kept"
    TURNED = "turned"
    """Into something else that does the same in a job."""
    DROPPED = "dropped"
    DECISION = "decision"
    """A job cannot do it as the notebook does: somebody has to say how."""


class CellChange(View):
    """One line of a cell that is not in the script as it was."""

    line: int
    """In the cell, from 1."""
    was: str
    fate: Fate
    text: str
    """What it became, or why it is gone or cannot stay."""
    hint: str | None = None
    """The next thing to do, best a command to run."""


class CellReceipt(View):
    number: int
    """From 1, cells of every kind counted."""
    kind: Literal["code", "markdown", "raw"]
    ran_as: int | None
    """Its number in the order of execution, as the notebook remembers it."""
    fate: Fate
    text: str
    changes: list[CellChange] = []
    script_line: int | None = None
    """Line of the script that the cell's first line follows; None if nothing of it is there."""


class Receipt(View):
    version: int = 1
    notebook: str
    script: str
    requirements: list[str]
    cells: list[CellReceipt]
    notes: list[str] = []
    """What concerns the notebook as a whole."""

    @property
    def decisions(self) -> list[CellReceipt]:
        return [cell for cell in self.cells if cell.fate == Fate.DECISION]

    @property
    def is_runnable(self) -> bool:
        return any(cell.script_line is not None for cell in self.cells)


class NotebookFetch(Schema):
    """Ask the server to fetch a notebook, make a script of it, and keep that as a source."""

    url: str = Field(min_length=1, max_length=2048)
    token: str | None = Field(default=None, max_length=4096)
    """The asker's own, for a notebook that is not public; sent to the URL's host and kept nowhere."""
    entry_cell: str | None = Field(default=None, max_length=255)
    """Only these cells: 3, 2-7, 4-, or the name of a tag; several with commas."""


class NotebookSource(View):
    source: SourceView
    entry: str
    """The script's path in it."""
    receipt: Receipt
