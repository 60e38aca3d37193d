"""Code of a job: a folder, archive or file that is packed here and uploaded, or a repository that the server fetches."""

from __future__ import annotations

import posixpath
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.shared.format import bar, clean, plural, size
from shoal.cli.shared.output import out
from shoal.core import entries
from shoal.core.errors import UsageError
from shoal.core.settings import ServerSettings

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.store.pack import PackedTree

MAX_BYTES = ServerSettings().max_source_mb << 20
MAX_FILES = 100_000
MOST_NAMED = 10
Look = Callable[[Path, Sequence[str], Sequence[str]], None]
_REDRAW_S = 0.1
_WORTH_A_BAR = 256 << 10


@dataclass(frozen=True, slots=True)
class NotebookChoice:
    where: str
    """Path of a local file, or a URL that the server fetches."""
    entry_cell: str | None = None
    as_is: bool = False
    token_stdin: bool = False

    @property
    def is_url(self) -> bool:
        return self.where.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """Place of a job's code. At most one field is set, except for a notebook with its folder; none means the current folder."""

    repository_url: str | None = None
    source_name: str | None = None
    folder: Path | None = None
    archive: Path | None = None
    file: Path | None = None
    revision: str | None = None
    notebook: NotebookChoice | None = None

    def check(self) -> None:
        given = {
            "--repository-url": self.repository_url,
            "--source-name": self.source_name,
            "--dir": None if self.notebook and not self.notebook.is_url else self.folder,
            "--notebook": self.notebook,
            "--zip": self.archive,
            "--file": self.file,
        }
        chosen = [option for option, value in given.items() if value is not None]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} cannot be combined: a job's code comes from one place.")
        if self.revision and not (self.repository_url or self.source_name):
            raise UsageError("--repository-revision needs --repository-url or --source-name.")

    @property
    def is_git(self) -> bool:
        return bool(self.repository_url or self.source_name)

    @property
    def is_fetched(self) -> bool:
        """True if the server fetches the code, so that it is never on this machine."""
        return self.is_git or (self.notebook is not None and self.notebook.is_url)


def send_source(
    client: Client, choice: SourceChoice, entry: Sequence[str], *, look: Look | None = None
) -> tuple[str, list[str]]:
    """Upload the code, or let the server fetch it; return the source's id and the entry with the script's path in the source.

    `look(folder, paths, entry)` is called before code is uploaded from this machine.
    """
    if choice.notebook is not None:
        from shoal.cli.notebook.source import send_notebook

        return send_notebook(client, choice.notebook, choice.folder, entry, look)
    if choice.is_git:
        if not entry:
            raise no_script([])
        out.dim(f"Fetching {choice.repository_url or choice.source_name} …")
        source = client.sources.fetch_git(
            url=choice.repository_url, source_name=choice.source_name, revision=choice.revision
        )
        return source.id, [_relative(entry[0]), *entry[1:]]
    if choice.archive is not None:
        with tempfile.TemporaryDirectory(prefix="shoal-") as scratch:
            return _send(client, choice, _unpack(choice.archive, Path(scratch) / "source"), entry, look)
    return _send(client, choice, choice.folder or Path.cwd(), entry, look)


def check_entry(entry: Sequence[str], paths: Sequence[str], folder: Path | None = None) -> list[str]:
    """Return the entry with its script's path in the source; raise EntryNotFound with a suggestion if the script is missing.

    Other first words (`torchrun`, `-m`, a command that requirements.txt installs) are accepted unchecked.
    """
    if not entry:
        raise no_script(paths)
    script = _relative(entry[0], folder)
    if script.endswith(".ipynb"):
        raise UsageError(f"{script} is a notebook.", hint=f"{out.prog} training run NAME --notebook {script}")
    is_excluded = folder is not None and (folder / script).is_file()
    found = entries.check_entry(script, paths, typed=entry[0], is_excluded=is_excluded)
    return [script, *entry[1:]] if found else list(entry)


def _send(
    client: Client, choice: SourceChoice, folder: Path, entry: Sequence[str], look: Look | None
) -> tuple[str, list[str]]:
    from shoal.store.pack import pack_files, pack_tree

    if choice.file is not None:
        packed = pack_files([choice.file])
        entry = entry or [choice.file.name]
        origin = {"kind": "file", "path": str(choice.file.absolute())}
    else:
        packed = pack_tree(folder, max_bytes=MAX_BYTES, max_files=MAX_FILES)
        where = choice.archive or folder
        origin = {"kind": "archive" if choice.archive else "folder", "path": str(where.absolute())}
    for line in packed.skipped:
        out.warn(f"skipped: {line}")
    paths = [f.path for f in packed.manifest.files]
    entry = check_entry(entry, paths, None if choice.archive else folder)
    if look is not None:
        look(choice.file.parent if choice.file else folder, paths, entry)
    return deliver(client, packed, origin), list(entry)


def deliver(client: Client, packed: PackedTree, origin: dict[str, str]) -> str:
    """Upload the chunks that the server does not have; return the source's id. Warn first of files that look like data."""
    _name_large_files(packed, origin)
    with _UploadBar(packed) as progress:
        source, sent = client.sources.send(packed, origin, progress=progress.add)
    out.dim(f"Source: {plural(source.files, 'file')}, {size(source.size)} ({size(sent)} sent)")
    return source.id


def _name_large_files(packed: PackedTree, origin: dict[str, str]) -> None:
    from shoal.store.ignore import LARGE_FILE, human_size, large_files

    found = large_files((f.path, f.size) for f in packed.manifest.files)
    for path, num_bytes in found[:MOST_NAMED]:
        out.warn(f"{clean(path)} ({human_size(num_bytes)}) is sent with the code.")
    if len(found) > MOST_NAMED:
        out.warn(
            f"{plural(len(found) - MOST_NAMED, 'more file')} over {human_size(LARGE_FILE)} are sent with the code."
        )
    if found:
        how = "make the archive without them" if origin["kind"] == "archive" else "list them in .shoalignore"
        out.info(f"  To leave files out, {how}. Push data once with: {out.prog} dataset push NAME --file PATH")


def _unpack(archive: Path, into: Path) -> Path:
    from shoal.store.archives.unpack import Limits, unpack

    for note in unpack(archive, into, limits=Limits(max_bytes=MAX_BYTES)):
        out.warn(note)
    return into


def _relative(script: str, folder: Path | None = None) -> str:
    """Return the path in the source of a script that is given as `./train.py` or as an absolute path into the folder."""
    if folder is not None and script.startswith("/"):
        try:
            return str(Path(script).resolve().relative_to(folder.resolve()))
        except ValueError:
            return script
    return posixpath.normpath(script) if script.startswith("./") else script


def no_script(paths: Sequence[str]) -> UsageError:
    """Return the error for a job without a script, with the likely one of these files in its hint."""
    scripts = sorted((path for path in paths if path.endswith(".py")), key=lambda p: ("/" in p, p))
    likely = next((name for name in ("train.py", "main.py") if name in scripts), scripts[0] if scripts else "train.py")
    return UsageError("No script given. Name it after `--`.", hint=f"For example, at the end: -- {likely}")


class _UploadBar:
    """Progress bar for uploads of more than 256 KiB, shown on a terminal. `add` may be called from any thread."""

    def __init__(self, packed: PackedTree):
        self._total = packed.manifest.size
        self._done = 0
        self._lock = threading.Lock()
        self._drawn_at = time.monotonic() + _REDRAW_S

    def __enter__(self) -> _UploadBar:
        return self

    def __exit__(self, *_: object) -> None:
        out.stick("")

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if self._total > _WORTH_A_BAR and now - self._drawn_at > _REDRAW_S:
                self._drawn_at = now
                out.stick(f"Uploading {bar(self._done / self._total)} {size(self._done)} of {size(self._total)}")
