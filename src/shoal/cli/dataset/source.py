"""Arguments of `dataset push`: files, folders, an archive or a URL, and their paths in the dataset."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.shared.output import out
from shoal.core.errors import InvalidSpec, NotFound, UsageError

if TYPE_CHECKING:
    from shoal.store.pack import Entry

_URL = re.compile(r"(s3|hf|https?)://", re.IGNORECASE)
_MOST_ENTRIES = 10_000_000
_MOST_RATIO = 1000


@dataclass(slots=True)
class Gathered:
    """Files to push, and their origin."""

    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    origin: dict[str, str] = field(default_factory=dict)


def split_urls(files: Sequence[str]) -> tuple[list[Path], str | None]:
    """Return the local paths, and the one URL that the server fetches (or None)."""
    urls = [f for f in files if _URL.match(f)]
    unknown = next((f for f in files if "://" in f and not _URL.match(f) and not Path(f).exists()), None)
    if unknown is not None:
        raise UsageError(f"--file {unknown}: the server can fetch from s3://, hf://, http:// and https:// only.")
    if urls and len(files) > 1:
        raise UsageError("A URL is fetched by the server, so it must be the only --file.")
    return [Path(f) for f in files if f not in urls], urls[0] if urls else None


@contextmanager
def gather(paths: Sequence[Path], *, unpack: bool = True, follow_links: bool = False) -> Iterator[Gathered]:
    """Yield the files to push.

    The content of a single folder or archive goes to the dataset's root. Several paths keep their names: files at the root,
    folders as folders, archives packed.
    """
    for path in paths:
        if not path.exists():
            raise NotFound(f"There is no file or folder {path}.")
    if len(paths) == 1 and paths[0].is_file() and unpack and _is_archive(paths[0]):
        with _unpacked(paths[0]) as folder:
            yield _finished(_Gathering(follow_links).folder("", folder), "archive", paths)
        return
    gathering = _Gathering(follow_links)
    for path in paths:
        if path.is_dir():
            gathering.folder("" if len(paths) == 1 else path.resolve().name, path)
        elif path.is_file():
            gathering.file(path)
        else:
            raise InvalidSpec(f"{path} is neither a file nor a folder.")
    kind = "files" if len(paths) > 1 else "folder" if paths and paths[0].is_dir() else "file"
    yield _finished(gathering, kind if paths else "empty", paths)


class _Gathering:
    def __init__(self, follow_links: bool):
        self._follow_links = follow_links
        self.entries: dict[str, Entry] = {}
        self.size = 0

    def file(self, path: Path) -> None:
        from shoal.store.pack import Entry

        status = path.stat()
        self._add(
            Entry(path.resolve().name if path.name in ("", "..") else path.name, path, bool(status.st_mode & 0o111))
        )
        self.size += status.st_size

    def folder(self, name: str, path: Path) -> _Gathering:
        from shoal.store.ignore import scan
        from shoal.store.pack import Entry

        try:
            found = scan(path, ignore=False, follow_out=self._follow_links)
        except InvalidSpec as error:
            if "link" not in error.message:
                raise
            raise InvalidSpec(
                error.message.removesuffix(" Replace it by a copy, or ignore it."),
                hint="Include the targets of such links: --follow-links",
            ) from error
        for line in found.skipped:
            out.warn(f"skipped: {line}")
        for file in found.files:
            self._add(
                Entry(f"{name}/{file.path}" if name else file.path, f"{path}/{file.path}", file.executable, file.stamp)
            )
        self.size += found.size
        return self

    def _add(self, entry: Entry) -> None:
        if known := self.entries.get(entry.path):
            raise UsageError(
                f"{known.disk} and {entry.disk} would both become {entry.path}.",
                hint="Rename one, or put them into one folder and push that.",
            )
        self.entries[entry.path] = entry


def _finished(gathering: _Gathering, kind: str, paths: Sequence[Path]) -> Gathered:
    for path in gathering.entries:
        for end in (i for i, c in enumerate(path) if c == "/"):
            if path[:end] in gathering.entries:
                raise UsageError(f"{path[:end]} would be both a file and a folder in the dataset.", hint="Rename one.")
    origin = {"kind": kind}
    if paths:
        # The origin is shown to people, so it names only the first few paths.
        origin["path"] = ", ".join(str(p.absolute()) for p in paths[:5]) + (", …" if len(paths) > 5 else "")
    return Gathered(list(gathering.entries.values()), gathering.size, origin)


def _is_archive(path: Path) -> bool:
    from shoal.store.archives.types import archive_kind

    return archive_kind(path.name) is not None


@contextmanager
def _unpacked(archive: Path) -> Iterator[Path]:
    from shoal.store.archives.unpack import Limits, unpack

    with tempfile.TemporaryDirectory(prefix="shoal-") as scratch:
        room = shutil.disk_usage(scratch).free
        limits = Limits(max_bytes=room, max_entries=_MOST_ENTRIES, max_ratio=_MOST_RATIO)
        out.dim(f"Unpacking {archive.name} …")
        for note in unpack(archive, Path(scratch) / "tree", limits=limits):
            out.warn(note)
        yield Path(scratch) / "tree"
