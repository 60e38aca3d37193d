"""Code of a job, packed from a folder or a notebook's cell and sent to the server."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core import entries
from shoal.core.errors import UsageError
from shoal.core.settings import ServerSettings

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.store.pack import Entry

MAX_BYTES, MAX_FILES = ServerSettings().max_source_mb << 20, 100_000
CELL = "cell.py"


def words_of(entry: str | Sequence[str]) -> list[str]:
    """Return the words of a script with its arguments, given as a command line or as a list."""
    words = shlex.split(entry) if isinstance(entry, str) else [str(word) for word in entry]
    if not words:
        raise UsageError("No script given.", hint='space.run("train.py --lr 3e-4")')
    return [words[0].removeprefix("./"), *words[1:]]


def send_folder(client: Client, folder: Path, words: Sequence[str]) -> str:
    """Send a folder as the source of a job that runs these words; return its id. Raise EntryNotFound if the script is missing."""
    from shoal.store.pack import pack_entries

    found = _entries(folder)
    entries.check_entry(words[0], list(found), is_excluded=(folder / words[0]).is_file())
    packed = pack_entries(list(found.values()))
    return client.sources.send(packed, {"kind": "folder", "path": str(folder.absolute())})[0].id


def send_cell(client: Client, folder: Path, text: str) -> tuple[str, str]:
    """Send the text of a cell as a script, with the folder's files beside it; return the source's id and the script's name."""
    from shoal.store.pack import Entry, pack_entries

    found = _entries(folder)
    name = CELL if CELL not in found else f"_{CELL}"
    with tempfile.TemporaryDirectory(prefix="shoal-") as scratch:
        script = Path(scratch) / name
        script.write_text(text, "utf-8")
        packed = pack_entries([*found.values(), Entry(name, script)])
        origin = {"kind": "notebook", "path": str(folder.absolute())}
        return client.sources.send(packed, origin)[0].id, name


def _entries(folder: Path) -> dict[str, Entry]:
    from shoal.store.ignore import scan
    from shoal.store.pack import Entry

    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}.", hint='space.run("train.py", folder="path/to/code")')
    scanned = scan(folder, ignore=True, max_bytes=MAX_BYTES, max_files=MAX_FILES)
    return {f.path: Entry(f.path, scanned.root / f.path, f.executable) for f in scanned.files}
