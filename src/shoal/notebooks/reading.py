"""Reader of notebook files: nbformat 4, and 3 with its worksheets. Outputs, widgets and attachments are ignored.

The format is small and frozen; a validating library would add ten packages to every machine with the command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from shoal.core.errors import InvalidSpec

MAX_BYTES = 256 << 20
"""Maximum size of a notebook with its outputs."""
MAX_CELLS = 10_000
MAX_CODE = 4_000_000
"""Maximum number of characters in all cells."""
_KINDS = {"code": "code", "markdown": "markdown", "heading": "markdown", "raw": "raw", "html": "raw"}


@dataclass(frozen=True, slots=True)
class Cell:
    number: int
    """Number of the cell, from 1."""
    kind: Literal["code", "markdown", "raw"]
    source: str
    ran_as: int | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notebook:
    title: str
    language: str
    cells: list[Cell]


def read_notebook(data: bytes, title: str) -> Notebook:
    """Read a notebook. Raises InvalidSpec if the data is not a notebook, or not one in Python."""
    if len(data) > MAX_BYTES:
        raise _bad(title, f"has {len(data) >> 20} MiB, more than {MAX_BYTES >> 20}", "Clear its outputs and save it.")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise _bad(title, _what_it_is(data)) from None
    if not isinstance(found, dict) or not isinstance(found.get("nbformat"), int):
        raise _bad(title, "is JSON, but not a notebook: it names no nbformat")
    if found["nbformat"] not in (3, 4):
        raise _bad(title, f"has the format {found['nbformat']}", "Open it in Jupyter and save it again.")
    cells = found.get("cells") if found["nbformat"] == 4 else _of_worksheets(found)
    if not isinstance(cells, list) or len(cells) > MAX_CELLS:
        raise _bad(title, "has no list of cells" if not isinstance(cells, list) else f"has over {MAX_CELLS} cells")
    language = _language(found)
    if language != "python":
        raise _bad(title, f"is written in {language}", "Jobs run Python; run other programs from a .sh or .py script.")
    read = [_cell(title, n, cell) for n, cell in enumerate(cells, 1)]
    if sum(len(cell.source) for cell in read) > MAX_CODE:
        raise _bad(title, f"has more than {MAX_CODE:,} characters in its cells", "Data belongs into datasets.")
    return Notebook(title, language, read)


def _cell(title: str, number: int, found: Any) -> Cell:
    kind = _KINDS.get(str(found.get("cell_type"))) if isinstance(found, dict) else None
    if kind is None:
        raise _bad(title, f"has a cell {number} that is neither code nor text")
    source = found.get("source", found.get("input", ""))
    if isinstance(source, list):
        source = "".join(str(line) for line in source)
    if not isinstance(source, str):
        raise _bad(title, f"has a cell {number} without text")
    count, metadata = found.get("execution_count", found.get("prompt_number")), found.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return Cell(
        number=number,
        kind=kind,  # type: ignore[arg-type]
        source=source.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode(),
        ran_as=count if isinstance(count, int) and count > 0 else None,
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
    )


def _of_worksheets(found: dict[str, Any]) -> list[Any]:
    sheets = found.get("worksheets") or []
    return [cell for sheet in sheets if isinstance(sheet, dict) for cell in sheet.get("cells") or []]


def _language(found: dict[str, Any]) -> str:
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        return "python"
    for part, name in (("language_info", "name"), ("kernelspec", "language")):
        told = metadata.get(part)
        if isinstance(told, dict) and told.get(name):
            return str(told[name]).lower().removeprefix("i")[:40]
    return "python"


def _what_it_is(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html")):
        return "is a web page, not a notebook; it may ask to sign in"
    return "is empty" if not start else "is not JSON, so no notebook"


def _bad(title: str, why: str, hint: str | None = None) -> InvalidSpec:
    return InvalidSpec(f"{title} {why}.", hint=hint)
