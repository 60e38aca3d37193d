"""Notes about a whole notebook: cells that ran in a different order, and packages that no cell installs."""

from __future__ import annotations

import ast

from shoal.notebooks import names
from shoal.notebooks.model import Work
from shoal.notebooks.pip import PACKAGES, Requirements
from shoal.notebooks.reading import Cell, Notebook

_ASSUMED = frozenset({"torch", "numpy"})
"""Packages that every job has."""


def note_order(
    notebook: Notebook, chosen: list[Cell], works: dict[int, Work], trees: dict[int, ast.Module]
) -> list[str]:
    """Return notes about the order of cells; record a decision for a cell that needs a name that only a later one defines."""
    notes = []
    ran = [cell for cell in chosen if cell.ran_as is not None]
    as_run = [cell.number for cell in sorted(ran, key=lambda cell: cell.ran_as or 0)]
    is_mixed = as_run != [cell.number for cell in ran]
    if is_mixed:
        order = ", ".join(map(str, as_run[:40])) + (" …" if len(as_run) > 40 else "")
        notes.append(f"The cells last ran in the order {order}; the script runs them from top to bottom.")
    if ran and (never := [str(cell.number) for cell in chosen if cell.ran_as is None and cell.source.strip()]):
        notes.append(f"Not run since the notebook was opened: cell {', '.join(never)}.")
    later = {cell.number: names.bound(trees[cell.number]) for cell in chosen if cell.number in trees}
    here: set[str] = set()
    for cell in chosen:
        made = later.pop(cell.number, set())
        if cell.number in trees:
            needed = names.read(trees[cell.number]) - here
            _decide(works[cell.number], needed, later, as_run if is_mixed else [])
        here |= made
    return notes


def note_imports(imported: set[str], requirements: Requirements) -> list[str]:
    """Return a note about imported packages that no cell installs: the job's machines may not have them."""
    open_ = sorted(name for name in imported - _ASSUMED if not requirements.covers(name))
    if not open_:
        return []
    asked = " ".join(PACKAGES.get(name, name) for name in open_)
    return [
        f"Imported, but not installed by any cell: {', '.join(open_)}. "
        f"If the machines do not have them, add: %pip install {asked}"
    ]


def _decide(work: Work, needed: set[str], later: dict[int, set[str]], as_run: list[int]) -> None:
    for name in sorted(needed):
        makers = [number for number, made in later.items() if name in made]
        if makers:
            order = f"--entry-cell {','.join(map(str, as_run))}" if as_run else "Move that cell up."
            work.line = 1
            work.decide(name, f"only cell {makers[0]}, further down, gives {name} a value", order)
