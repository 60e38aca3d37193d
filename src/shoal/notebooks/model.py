"""State of the translation of a cell: its lines as Python, the changes, and what it needs from the job."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from shoal.core.notebooks import CellChange, Fate
from shoal.notebooks.pip import Requirements

_SHOWN = 160


@dataclass(slots=True)
class Shared:
    """State that all cells of a notebook share."""

    known: Set[str]
    """Names that the notebook's own code defines."""
    code: str = ""
    """Code of all its cells."""
    requirements: Requirements = field(default_factory=Requirements)
    future: list[str] = field(default_factory=list)
    """`from __future__` imports, which must be at the top of the script."""
    written: set[str] = field(default_factory=set)
    """Modules that its cells write."""
    colab: set[str] = field(default_factory=set)
    """Names imported from google.colab."""
    widgets: set[str] = field(default_factory=set)
    """Names of widgets, and of functions and modules that create them."""


@dataclass(slots=True)
class Work:
    """Translation of one cell. `python` has as many lines as the cell, so that line numbers stay the same."""

    shared: Shared
    python: list[str] = field(default_factory=list)
    changes: list[CellChange] = field(default_factory=list)
    line: int = 1
    """Line of the cell that is being translated."""

    def turned(self, was: str, text: str, hint: str | None = None) -> None:
        self._note(Fate.TURNED, was, text, hint)

    def dropped(self, was: str, why: str, hint: str | None = None) -> None:
        self._note(Fate.DROPPED, was, why, hint)

    def decide(self, was: str, why: str, hint: str | None = None) -> None:
        self._note(Fate.DECISION, was, why, hint)

    def _note(self, fate: Fate, was: str, text: str, hint: str | None) -> None:
        shown = was.strip().partition("\n")[0]
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
        self.changes.append(CellChange(line=self.line, was=shown, fate=fate, text=text, hint=hint))
