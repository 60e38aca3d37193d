"""Lines of the receipt, one per cell."""

from __future__ import annotations

from shoal.core.notebooks import CellReceipt, Fate
from shoal.notebooks.model import Work
from shoal.notebooks.reading import Cell


def cell_receipt(cell: Cell, work: Work, place: int | None) -> CellReceipt:
    fate, text = _fate(cell, work, place)
    return CellReceipt(
        number=cell.number,
        kind=cell.kind,
        ran_as=cell.ran_as,
        fate=fate,
        text=text,
        changes=work.changes,
        script_line=place,
    )


def dropped_cell(cell: Cell, entry_cell: str | None) -> CellReceipt:
    """Return the receipt of a cell that was not translated: text, or code that was not selected."""
    why = "text for people" if cell.kind == "markdown" else "raw text"
    if cell.kind == "code":
        why = f"not among --entry-cell {entry_cell}" if cell.source.strip() else "empty"
    return CellReceipt(number=cell.number, kind=cell.kind, ran_as=cell.ran_as, fate=Fate.DROPPED, text=why)


def _fate(cell: Cell, work: Work, place: int | None) -> tuple[Fate, str]:
    open_ = [change for change in work.changes if change.fate == Fate.DECISION]
    if open_:
        more = f" (and {len(open_) - 1} more)" if len(open_) > 1 else ""
        return Fate.DECISION, f"{open_[0].was}: {open_[0].text}{more}"
    if not work.changes:
        return (Fate.KEPT, "as it is") if place is not None else (Fate.DROPPED, "empty")
    told = [f"{change.text}" for change in work.changes]
    turned = [change for change in work.changes if change.fate == Fate.TURNED]
    if place is None and not turned:
        return Fate.DROPPED, "; ".join(dict.fromkeys(told))
    return Fate.TURNED, "; ".join(dict.fromkeys(told))
