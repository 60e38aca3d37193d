"""Packing of files into a manifest: cut, hash on all cores, remember where each chunk is. Memory use is constant.

Chunks are read again when they are sent. A file that changes is detected then, as it is while it is hashed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.artifacts import Manifest, check_path
from shoal.core.errors import InvalidSpec
from shoal.store.file_identity import FileIdentity
from shoal.store.files import read_exact
from shoal.store.hasher import THREADS, Entry, Hashed, Hasher, Progress, Sink, changed, open_file
from shoal.store.hashing import chunk_hash
from shoal.store.ignore import Scan, scan
from shoal.store.known import KnownFiles


@dataclass(slots=True)
class PackedTree:
    """A manifest, and where to read the bytes of its chunks."""

    manifest: Manifest
    skipped: list[str] = field(default_factory=list)
    """One line per entry that was left out because it cannot be stored: sockets, pipes, broken links."""
    where: dict[str, tuple[str | Path, int, int]] = field(default_factory=dict)
    """Hash → (file, offset, size)."""
    unread: set[str] = field(default_factory=set)
    """Paths that were not read, because their chunks were known."""

    def read(self, name: str) -> bytes:
        """Return a chunk's bytes from its file; raise Refused if the file has changed."""
        path, offset, size = self.where[name]
        fd = open_file(path)
        try:
            data = read_exact(fd, size, offset)
        finally:
            os.close(fd)
        if chunk_hash(data) != name:
            raise changed(path)
        return data


def pack_tree(
    root: Path,
    *,
    ignore: bool = True,
    max_bytes: int | None = None,
    max_files: int | None = None,
    scanned: Scan | None = None,
    known: KnownFiles | None = None,
    progress: Progress | None = None,
) -> PackedTree:
    """Pack a folder.

    Args:
        root: The folder.
        ignore: Apply ignore files; False packs every file (datasets).
        max_bytes, max_files: Limits of `scan`.
        scanned: An earlier `scan` of the folder; saves listing it again.
        known: Cache of hashed files; unchanged ones are not read.
        progress: Called with the bytes just hashed.
    """
    found = scanned or scan(Path(root), ignore=ignore, max_bytes=max_bytes, max_files=max_files)
    entries = [Entry(f.path, f"{found.root}/{f.path}", f.executable, f.stamp) for f in found.files]
    packed = pack_entries(entries, known=known, progress=progress)
    packed.skipped += found.skipped
    return packed


def pack_files(files: Mapping[str, Path] | Iterable[Path], *, progress: Progress | None = None) -> PackedTree:
    """Pack single files, each under its own name or, in a mapping, under the path that is its key."""
    pairs = list(files.items()) if isinstance(files, Mapping) else [(Path(f).name, Path(f)) for f in files]
    seen: dict[str, Path] = {}
    for name, path in pairs:
        if name in seen:
            raise InvalidSpec(f"{seen[name]} and {path} would both become {name}.")
        if not path.is_file():
            raise InvalidSpec(f"{path} is not a file." if path.exists() else f"There is no file {path}.")
        seen[name] = path
    entries = [Entry(name, path, bool(path.stat().st_mode & 0o111)) for name, path in seen.items()]
    return pack_entries(entries, progress=progress)


def pack_entries(
    entries: list[Entry],
    *,
    progress: Progress | None = None,
    sink: Sink | None = None,
    abort: Callable[[], None] = lambda: None,
    known: KnownFiles | None = None,
) -> PackedTree:
    """Pack any list of files; the other functions call this one.

    Args:
        entries: The files, each with its path in the manifest.
        progress: Called with the bytes just hashed.
        sink: Called with every chunk's bytes as soon as they are hashed, from several threads.
        abort: Called at the first error, so that a sink that blocks its callers can release them.
        known: Cache of hashed files. Unchanged ones are neither read nor passed to the sink; see `PackedTree.unread`.
    """
    by_path = {check_path(e.path): e for e in entries}
    if len(by_path) < len(entries):
        raise InvalidSpec("Two files were given for one path.")
    found = [(e, e.stamp or _stat(e.disk)) for e in entries]
    made = known.find(found) if known else []
    if made and progress:
        progress(sum(size for _, chunks in made for _, size in chunks))
    unread = {e.path for e, _ in made}
    unknown = [(e, stamp) for e, stamp in found if e.path not in unread]
    made += Hasher(progress, sink, known).run(unknown, abort=abort)
    if known:
        known.save()
    return _packed(made, unread)


def _stat(path: str | Path) -> FileIdentity | None:
    """Return a file's identity; None if it cannot be read. Opening it later raises the error."""
    try:
        return FileIdentity.of(os.stat(path))  # noqa: PTH116  three times as fast as path.stat(), for up to a million files
    except OSError:
        return None


def _packed(made: list[Hashed], unread: set[str]) -> PackedTree:
    made.sort(key=lambda pair: pair[0].path)
    # One validation of everything is far faster than creating each object, even without validation.
    manifest = Manifest.model_validate(
        {
            "files": [
                {
                    "path": entry.path,
                    "size": sum(size for _, size in chunks),
                    "executable": entry.executable,
                    "chunks": [{"hash": name, "size": size} for name, size in chunks],
                }
                for entry, chunks in made
            ]
        }
    )
    packed = PackedTree(manifest, unread=unread)
    for entry, chunks in made:
        offset = 0
        for name, size in chunks:
            packed.where.setdefault(name, (entry.disk, offset, size))
            offset += size
    return packed


__all__ = ["THREADS", "Entry", "PackedTree", "Progress", "pack_entries", "pack_files", "pack_tree"]
