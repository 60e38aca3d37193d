"""Conversion of a notebook to a script: every cell is translated in place, and the receipt describes each conversion."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources

from shoal.core.notebooks import RECEIPT_SUFFIX, Receipt
from shoal.notebooks import awaits, names
from shoal.notebooks.cell_magics import split_cell_magic, translate_cell
from shoal.notebooks.entry_cells import choose
from shoal.notebooks.lines import NOT_PYTHON, pieces
from shoal.notebooks.magics import translate_line
from shoal.notebooks.model import Shared, Work
from shoal.notebooks.order import note_imports, note_order
from shoal.notebooks.pip import Requirements
from shoal.notebooks.reading import Cell, read_notebook
from shoal.notebooks.report import cell_receipt, dropped_cell
from shoal.notebooks.rewrite import rewrite

HELPERS = "shoal_cells"
REQUIREMENTS = "requirements.txt"
_OURS = {HELPERS, "google", "shoal", "NetmindMixins"}


@dataclass(frozen=True, slots=True)
class Conversion:
    script_name: str
    script: str
    requirements: list[str]
    receipt: Receipt
    imports: frozenset[str]
    """Top-level modules that it imports, except Python's own."""

    def entry(self, folder: str = "") -> str:
        """Return the script's path in a source."""
        return f"{folder}/{self.script_name}" if folder else self.script_name

    def files(self, earlier: str = "", folder: str = "") -> dict[str, str]:
        """Return the files to add to a source as path → text. `earlier` is the text of its existing requirements.txt."""
        made = {
            self.script_name: self.script,
            f"{HELPERS}.py": resources.files("shoal.notebooks").joinpath(f"{HELPERS}.py").read_text("utf-8"),
            self.script_name.removesuffix(".py") + RECEIPT_SUFFIX: self.receipt.model_dump_json(indent=1) + "\n",
        }
        lines = Requirements.of(self.requirements).after(earlier)
        if folder:
            made = {f"{folder}/{name}": text for name, text in made.items()}
        return made | ({REQUIREMENTS: "\n".join(lines) + "\n"} if lines else {})


def convert(data: bytes, title: str, *, entry_cell: str | None = None, beside: Collection[str] = ()) -> Conversion:
    """Convert a notebook. `title` is its file name, `beside` the files of its folder. Pure: nothing is run or written.

    Raises InvalidSpec if the data is not a notebook, or if it does not have the `entry_cell`.
    """
    notebook = read_notebook(data, title)
    chosen = choose(notebook, entry_cell)
    known = set[str]().union(*(names.bound_in_source(cell.source) for cell in chosen))
    shared = Shared(known=known, code="\n".join(cell.source for cell in chosen))
    works = {cell.number: _translate(shared, cell) for cell in chosen}
    for cell in notebook.cells:  # packages that other cells install are needed too
        if cell.kind == "code" and cell.number not in works:
            _translate(shared, cell)
    trees = {n: tree for n, work in works.items() if (tree := _parsed("\n".join(work.python))) is not None}
    notes = note_order(notebook, chosen, works, trees)
    script_name = script_name_of(title)
    script, places = _assemble(title, script_name, shared, chosen, works)
    cells = [
        cell_receipt(cell, works[cell.number], places.get(cell.number))
        if cell.number in works
        else dropped_cell(cell, entry_cell)
        for cell in notebook.cells
    ]
    wanted = list(shared.requirements.lines.values())
    imported = {name for tree in trees.values() for name in names.imports(tree)} - sys.stdlib_module_names - _OURS
    imported -= shared.written
    notes += note_imports(imported - {name.removesuffix(".py") for name in beside}, shared.requirements)
    receipt = Receipt(notebook=title, script=script_name, requirements=wanted, cells=cells, notes=notes)
    return Conversion(script_name, script, wanted, receipt, frozenset(imported))


def script_name_of(title: str) -> str:
    stem = re.sub(r"\.ipynb$", "", title.replace("\\", "/").rpartition("/")[2], flags=re.I)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._-")[:100] or "notebook"
    # A script with the name of a module that it imports would be imported instead of it.
    return f"{plain}_notebook.py" if plain in sys.stdlib_module_names or plain in (HELPERS, "torch") else f"{plain}.py"


def _translate(shared: Shared, cell: Cell) -> Work:
    work = Work(shared)
    source = _dedented(cell.source.rstrip())
    if found := split_cell_magic(source):
        name, rest, work.line = found
        body = translate_cell(work, source, name, rest)
        if body is None:
            return work
        source = body
    for piece in pieces(source):
        work.line = piece.line
        if piece.is_python:
            work.python += piece.lines
            continue
        line = translate_line(work, piece)
        padding = [""] * (len(piece.lines) - 1)
        work.python += [piece.indent + (line or ("pass" if piece.indent else "")), *padding]
    _check(work)
    return work


def _check(work: Work) -> None:
    """Rewrite code that works only in a notebook; remove the whole cell if it is not valid Python."""
    tree = _parsed(source := "\n".join(work.python))
    try:
        if tree is None:
            awaits.is_async(source)
        else:
            rewrite(work, tree)
            awaits.is_async("\n".join(work.python))
    except NOT_PYTHON as error:
        work.line = getattr(error, "lineno", None) or 1
        was = work.python[min(work.line, len(work.python)) - 1] if work.python else ""
        why = getattr(error, "msg", None) or str(error) or "too deeply nested"
        work.decide(was, f"this is not valid Python: {why}", "Fix the cell, or exclude it with --entry-cell.")
        work.python = []


def _parsed(source: str) -> ast.Module | None:
    try:
        return names.parse(source)
    except NOT_PYTHON:
        return None


def _assemble(
    title: str, script_name: str, shared: Shared, chosen: list[Cell], works: dict[int, Work]
) -> tuple[str, dict[int, int]]:
    """Return the script, and a mapping of cell number → line of its `# %%` in the script."""
    receipt = script_name.removesuffix(".py") + RECEIPT_SUFFIX
    lines = [f'"""{_quoted(title)} as a script. The conversion of each cell is described in {receipt}."""', ""]
    lines += dict.fromkeys(shared.future)
    lines += [f"import {HELPERS} as _nb", "", f"_nb.watch(__file__, {title!r})"]
    used = set[str]().union(*(names.read_anywhere(work.python) for work in works.values()))
    lines += [f"{name} = _nb.{name}" for name in ("display", "get_ipython") if name in used - shared.known]
    places: dict[int, int] = {}
    for cell in chosen:
        work = works[cell.number]
        if not any(line.strip() for line in work.python):
            continue
        before, body, after = _cell_lines(work, cell.number)
        lines += ["", *before, f"# %% cell {cell.number}"]
        places[cell.number] = len(lines)
        lines += [*body, *after]
    return "\n".join(lines).rstrip() + "\n", places


def _cell_lines(work: Work, number: int) -> tuple[list[str], list[str], list[str]]:
    while work.python and not work.python[-1].strip():
        work.python.pop()
    if not awaits.is_async("\n".join(work.python)):
        return [], work.python, []
    try:
        made = awaits.wrap(work.python, number)
    except SyntaxError as error:
        work.line = error.lineno or 1
        work.decide("await", f"this cannot be awaited in a script: {error.msg}", "Put it into an async function.")
        return [], [f"raise SystemExit('cell {number} cannot be run in a script')"], []
    work.line = 1
    work.turned("await", "runs in an event loop that all such cells share")
    return made


def _dedented(source: str) -> str:
    """Remove the common indentation of a cell, which IPython accepts."""
    first = next((line for line in source.split("\n") if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(indent) for line in source.split("\n")) if indent else source


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1].replace('"', "'")
