"""Selection of cells by `--entry-cell`, in the order in which they are named."""

from __future__ import annotations

import re

from shoal.core.errors import InvalidSpec
from shoal.core.names import did_you_mean
from shoal.notebooks.reading import Cell, Notebook

_RANGE = re.compile(r"(\d*)\s*(-?)\s*(\d*)")


def choose(notebook: Notebook, wanted: str | None) -> list[Cell]:
    """Return all code cells, or those of `3`, `2-7`, `4-`, `-6` or a tag's name; several are separated by commas."""
    code = [cell for cell in notebook.cells if cell.kind == "code"]
    if wanted is None:
        return code
    chosen: list[Cell] = []
    for part in (part.strip() for part in wanted.split(",")):
        chosen += [cell for cell in _part(notebook, code, part) if cell not in chosen]
    return chosen


def _part(notebook: Notebook, code: list[Cell], part: str) -> list[Cell]:
    found = _RANGE.fullmatch(part)
    if found is None or not (found[1] or found[3]):
        tagged = [cell for cell in code if part in cell.tags]
        if not tagged:
            tags = sorted({tag for cell in code for tag in cell.tags})
            known = f" Its tags are {', '.join(tags)}." if tags else " None of its cells has a tag."
            raise _bad(notebook, part, "no code cell has this tag." + (did_you_mean(part, tags) or known))
        return tagged
    last = len(notebook.cells)
    first, end = int(found[1] or 1), int(found[3] or (last if found[2] else found[1]))
    if not 1 <= first <= end <= last:
        raise _bad(notebook, part, f"its cells are numbered 1 to {last}, including text cells.")
    inside = [cell for cell in code if first <= cell.number <= end]
    if not inside:
        raise _bad(notebook, part, "it has only text cells.")
    return inside


def _bad(notebook: Notebook, part: str, why: str) -> InvalidSpec:
    hint = f"shoal notebook convert {notebook.title}, which lists its cells"
    return InvalidSpec(f"--entry-cell {part}: {why}", hint=hint)
