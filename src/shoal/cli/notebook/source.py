"""Notebook as a job's code: converted here, or by the server for a URL; reported; and uploaded with its receipt."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.shared.format import clean, plural
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.source import MAX_BYTES, MAX_FILES, Look, NotebookChoice, deliver
from shoal.core.errors import InvalidSpec, NotFound, UsageError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.notebooks import Receipt
    from shoal.notebooks import Conversion
    from shoal.store.pack import PackedTree

_REQUIREMENTS = "requirements.txt"
_FATES = {"kept": "kept", "turned": "changed", "dropped": "dropped", "decision": "to decide"}


def send_notebook(
    client: Client, choice: NotebookChoice, folder: Path | None, arguments: Sequence[str], look: Look | None
) -> tuple[str, list[str]]:
    """Convert and upload a notebook; return the source's id and the entry (the script and its arguments)."""
    if choice.is_url:
        out.dim(f"Fetching {choice.where} …")
        made = client.sources.fetch_notebook(choice.where, token=_token(choice), entry_cell=choice.entry_cell)
        accept(made.receipt, choice)
        return made.source.id, [made.entry, *arguments]
    path = Path(choice.where)
    conversion = convert_file(path, choice.entry_cell)
    demand_code(conversion)
    beside = [] if folder is not None else _beside(path, conversion)
    accept(conversion.receipt, choice, beside)
    with tempfile.TemporaryDirectory(prefix="shoal-") as scratch:
        packed, script = _pack(conversion, path, folder, Path(scratch))
        entry = [script, *arguments]
        if look is not None:
            look(Path(scratch), [p.name for p in Path(scratch).iterdir()], [conversion.script_name, *arguments])
        return deliver(client, packed, _origin(choice, path, folder) | {"script": script}), entry


def convert_file(path: Path, entry_cell: str | None = None) -> Conversion:
    from shoal.notebooks import MAX_BYTES as MOST
    from shoal.notebooks import convert

    if not path.is_file():
        raise NotFound(f"There is no notebook {path}." if not path.exists() else f"{path} is a folder, not a notebook.")
    if path.stat().st_size > MOST:
        raise InvalidSpec(f"{path} is larger than {MOST >> 20} MiB.", hint="Clear its outputs and save it.")
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # warnings about the notebook's own code
        beside = [file.name for file in path.resolve().parent.iterdir()]
        return convert(path.read_bytes(), path.name, entry_cell=entry_cell, beside=beside)


def demand_code(conversion: Conversion) -> None:
    if not conversion.receipt.is_runnable:
        name = conversion.receipt.notebook
        raise InvalidSpec(f"{name} contains no code that a job could run.", hint=f"{out.prog} notebook convert {name}")


def accept(receipt: Receipt, choice: NotebookChoice, beside: Sequence[str] = ()) -> None:
    """Report the conversion; raise UsageError if cells need a decision or modules are missing, unless --as-is was given."""
    out.info(f"{clean(receipt.notebook)}: {summary(receipt)}.")
    for cell in receipt.cells:
        for change in cell.changes if cell.fate == "decision" else []:
            if change.fate == "decision":
                out.warn(f"cell {cell.number}, line {change.line}: {clean(change.was)}: {clean(change.text)}")
                if change.hint:
                    out.dim(f"  {clean(change.hint)}")
    for name in beside:
        out.warn(f"the notebook imports {name}, which is in its folder and would not be sent")
    for note in receipt.notes:
        out.dim(clean(note))
    open_ = len(receipt.decisions)
    if choice.as_is or not (open_ or beside):
        return
    if beside:
        hint = f"Send the folder too: --dir {Path(choice.where).parent}"
        raise UsageError(
            f"{', '.join(beside)} would be missing in the job.", hint=f"{hint}; or run it without: --as-is"
        )
    raise UsageError(
        f"{plural(open_, 'cell')} of {receipt.notebook} {'needs' if open_ == 1 else 'need'} a decision; nothing was submitted.",
        hint="Change the notebook as described above, choose cells with --entry-cell, or run it unchanged: --as-is",
    )


def summary(receipt: Receipt) -> str:
    """Return a summary such as `9 cells: 4 kept, 2 changed, 3 dropped`."""
    counts = {name: sum(cell.fate == fate for cell in receipt.cells) for fate, name in _FATES.items()}
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    needed = f"; requirements: {', '.join(receipt.requirements)}" if receipt.requirements else ""
    return f"{plural(len(receipt.cells), 'cell')}: {', '.join(parts) or 'nothing'}{needed}"


def print_receipt(receipt: Receipt) -> None:
    """Print the whole receipt, cell by cell."""
    columns = [
        Column("CELL", lambda c: c.number, is_right=True),
        Column("KIND", lambda c: c.kind, rank=2),
        Column("RESULT", lambda c: _FATES[c.fate], rank=1),
        Column("WHAT", lambda c: c.text, is_text=True),
        Column("LINE", lambda c: c.script_line, is_right=True, rank=1),
    ]
    out.table(receipt.cells, columns)
    hints = [(c.number, change) for c in receipt.cells for change in c.changes if change.hint]
    if hints:
        out.heading("What to do")
        for number, change in hints:
            out.line(f"  cell {number}, line {change.line}: {clean(change.hint or '')}")
    if receipt.requirements:
        out.heading("Requirements")
        for line in receipt.requirements:
            out.line(f"  {clean(line)}")
    for note in receipt.notes:
        out.info(clean(note))


def _pack(conversion: Conversion, path: Path, folder: Path | None, scratch: Path) -> tuple[PackedTree, str]:
    """Pack the converted script, and the files of `folder` if it is given; return the packed tree and the script's path.

    The script gets the place of the notebook in the folder.
    """
    from shoal.store.ignore import scan
    from shoal.store.pack import Entry, pack_entries

    inside = folder is not None and path.resolve().is_relative_to(folder.resolve())
    place = path.resolve().parent.relative_to(folder.resolve()).as_posix() if folder is not None and inside else "."
    place = "" if place == "." else place
    entries: dict[str, Entry] = {}
    earlier = ""
    if folder is not None:
        found = scan(folder, ignore=True, max_bytes=MAX_BYTES, max_files=MAX_FILES)
        entries = {f.path: Entry(f.path, found.root / f.path, f.executable) for f in found.files}
        if _REQUIREMENTS in entries:
            earlier = Path(entries[_REQUIREMENTS].disk).read_text("utf-8-sig", "replace")
    for path_there, text in conversion.files(earlier, place).items():
        made = scratch / path_there.rpartition("/")[2]
        made.write_text(text, "utf-8")
        entries[path_there] = Entry(path_there, made)
    return pack_entries(list(entries.values())), conversion.entry(place)


def _beside(path: Path, conversion: Conversion) -> list[str]:
    """Return the modules that the notebook imports from its own folder."""
    here = path.resolve().parent
    return sorted(
        name
        for name in conversion.imports
        if (here / f"{name}.py").is_file() or (here / name / "__init__.py").is_file()
    )


def _origin(choice: NotebookChoice, path: Path, folder: Path | None) -> dict[str, str]:
    told = {"kind": "notebook", "path": str(path.absolute())}
    told |= {"folder": str(folder.absolute())} if folder is not None else {}
    return told | ({"entry_cell": choice.entry_cell} if choice.entry_cell else {})


def _token(choice: NotebookChoice) -> str | None:
    from shoal.cli.shared.prompt import read_secret

    if not choice.token_stdin:
        return None
    return read_secret("A token for the notebook", from_stdin=True, option="--token-stdin").strip()
