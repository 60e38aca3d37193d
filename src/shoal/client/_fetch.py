"""Download of trees: many chunks per request, in parallel, continued where an earlier download stopped.

Files are written to a private folder beside (or in) the destination and moved to their place when all are complete.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.core import system
from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import Corrupt, NameTaken, NotFound, Refused, ShoalError
from shoal.store.batches import in_batches
from shoal.store.files import disk_errors, read_exact, write_at
from shoal.store.hashing import Data, chunk_hash
from shoal.store.manifest import manifest_id
from shoal.store.transfer import in_parallel

if TYPE_CHECKING:
    from shoal.store.pack import Progress

BATCH_BYTES, LARGEST_BATCH = 16 << 20, 64 << 20
"""Bytes of one request, at least and at most. Data is written as it arrives, so large requests need no more memory, and fewer
requests cost less."""
BATCH_COUNT = 1024
RUN_BYTES = 4 << 20
"""Bytes of adjacent chunks that are written with one call."""
THREADS = 4
MOST_NAMED = 5
"""Number of conflicting files listed in an error."""

_WRITE = os.O_WRONLY | os.O_CREAT | system.NOFOLLOW | system.CLOEXEC
_READ = os.O_RDONLY | system.NOFOLLOW | system.CLOEXEC


class Source(Protocol):
    """A source of chunks."""

    def get_many(self, names: Sequence[str]) -> Iterator[tuple[str, Data]]:
        """Yield (hash, bytes) of each chunk, verified, in any order. Several may be views of one larger block of memory."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """Result of a download."""

    path: Path
    files: int
    size: int
    received: int
    """Bytes that were downloaded. The rest was already there."""


def fetch_tree(
    manifest: Manifest, source: Source, dest: Path, *, force: bool = False, progress: Progress | None = None
) -> Fetched:
    """Make `dest` contain the files of a (checked) manifest. Files already there with the same content are not downloaded.

    Raise NameTaken if a path has other content, unless `force` allows replacing it. Files with other names are left unchanged.
    """
    dest = Path(os.path.abspath(dest))  # noqa: PTH100  resolve() would replace a link given as destination
    report = progress or (lambda _: None)
    with disk_errors(dest):
        here = _already_there(manifest, dest, force)
        report(sum(f.size for f in manifest.files if f.path in here))
        wanted = [f for f in manifest.files if f.path not in here]
        inside = dest.exists()
        # Inside the destination if it exists: it may be on another disk than its parent.
        parent = dest if inside else dest.parent
        aside = parent / f".{'' if inside else dest.name[:80] + '.'}{manifest_id(manifest)[:16]}.partial"
        tree, is_new = _open_aside(aside)
        received = _Filling(tree, wanted, report).run(source, is_new=is_new)
        _move_into_place(tree, dest, wanted, whole=not inside)
        shutil.rmtree(aside)
    return Fetched(dest, len(manifest.files), manifest.size, received)


class _Filling:
    """Files in a private folder, filled chunk by chunk, in any order and by several threads.

    Safe without a lock: `_places` and `_sizes` are complete before the threads start, each chunk is in exactly one batch, and
    each thread writes its chunks to their own ranges of the files. After a crash the next download hashes what is there and
    fetches only wrong or missing chunks.
    """

    def __init__(self, root: Path, files: list[FileEntry], report: Progress):
        self._root, self._files, self._report = root, files, report
        self._places: dict[str, list[tuple[FileEntry, int]]] = {}
        """Hash → all places (file, offset) to write the chunk to."""
        self._sizes: dict[str, int] = {}

    def run(self, source: Source, *, is_new: bool) -> int:
        for folder in sorted({f.path.rpartition("/")[0] for f in self._files}):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-look") as pool:
            apply = map if is_new else pool.map
            for file, lacking in zip(self._files, apply(self._chunks_to_fetch, self._files), strict=True):
                for name, size, offset in lacking:
                    self._places.setdefault(name, []).append((file, offset))
                    self._sizes[name] = size

        def fetch(names: list[str]) -> int:
            return self._write_batch(names, source)

        return sum(in_parallel(fetch, self._batches(), THREADS))

    def _chunks_to_fetch(self, file: FileEntry) -> list[tuple[str, int, int]]:
        """Return (hash, size, offset) of the chunks to download.

        Chunks that an earlier download has written correctly are kept.
        """
        path = self._root / file.path
        try:
            fd = os.open(path, os.O_RDWR | system.NOFOLLOW | system.CLOEXEC)
        except FileNotFoundError:
            if not file.size:
                os.close(os.open(path, _WRITE, _mode(file)))
            return list(_chunks(file))
        try:
            if os.fstat(fd).st_size > file.size:
                os.ftruncate(fd, file.size)
            lacking = [c for c in _chunks(file) if chunk_hash(read_exact(fd, c[1], c[2])) != c[0]]
        finally:
            os.close(fd)
        self._report(file.size - sum(size for _, size, _ in lacking))
        return lacking

    def _batches(self) -> Iterator[list[str]]:
        most = min(max(sum(self._sizes.values()) // (4 * THREADS), BATCH_BYTES), LARGEST_BATCH)
        return in_batches(self._sizes.items(), max_bytes=most, max_count=BATCH_COUNT)

    def _write_batch(self, names: list[str], source: Source) -> int:
        received = 0
        run = _Run(self._root)
        try:
            for name, data in source.get_many(names):
                received += len(data)
                for file, offset in self._places[name]:
                    run.add(file, offset, data)
                    self._report(len(data))
            run.write()
        except (Corrupt, NotFound) as error:
            run.write()
            raise self._named(error) from error
        return received

    def _named(self, error: ShoalError) -> ShoalError:
        """Return the same error with the name of the affected file."""
        places = self._places.get(str(error.details.get("hash")), [])
        if not places:
            return error
        what = "damaged" if isinstance(error, Corrupt) else "missing"
        return Corrupt(
            f"{places[0][0].path} cannot be fetched: a part of it is {what} in the store.",
            hint="List all damage: shoal store check. To repair it: shoal store check --quarantine, then push the files again.",
            details=error.details | {"path": places[0][0].path},
        )


class _Run:
    """Adjacent chunks of one file, collected to be written with one call."""

    def __init__(self, root: Path):
        self._root = str(root)
        self._file: FileEntry | None = None
        self._start = self._size = 0
        self._parts: list[Data] = []

    def add(self, file: FileEntry, offset: int, data: Data) -> None:
        if file is not self._file or offset != self._start + self._size or self._size >= RUN_BYTES:
            self.write()
            self._file, self._start = file, offset
        self._parts.append(data)
        self._size += len(data)

    def write(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if self._file is None or not parts:
            return
        fd = os.open(f"{self._root}/{self._file.path}", _WRITE, _mode(self._file))
        try:
            write_at(fd, parts, self._start)
        finally:
            os.close(fd)


def _already_there(manifest: Manifest, dest: Path, force: bool) -> set[str]:
    """Return the paths of the manifest that `dest` has with the same content; raise NameTaken for other content."""
    if not dest.exists():
        return set()
    if not dest.is_dir():
        raise NameTaken(f"{dest} is a file.", hint="Choose another folder: --destination DIR")
    found = [f for f in manifest.files if os.path.lexists(dest / f.path)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-look") as pool:
        same = {
            f.path for f, is_same in zip(found, pool.map(lambda f: _is_same(dest, f), found), strict=True) if is_same
        }
    others = [f.path for f in found if f.path not in same]
    if others and not force:
        named = ", ".join(others[:MOST_NAMED]) + (", …" if len(others) > MOST_NAMED else "")
        raise NameTaken(
            f"{dest} already has files with these names and other content: {named}.",
            hint="Choose another folder (--destination DIR), or replace them: --force",
        )
    return same


def _is_same(root: Path, file: FileEntry) -> bool:
    try:
        fd = os.open(root / file.path, _READ)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_size == file.size
            and all(chunk_hash(read_exact(fd, size, offset)) == name for name, size, offset in _chunks(file))
        )
    finally:
        os.close(fd)


def _open_aside(path: Path) -> tuple[Path, bool]:
    """Return the tree in the private folder, and whether it is new (False: an earlier download of ours left it)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = True
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        is_new = False
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != system.user_id() or status.st_mode & 0o077:
            raise Refused(f"{path} exists and is not a private folder of yours.", hint=f"rm -r {path}") from None
    tree = path / "tree"
    tree.mkdir(exist_ok=True)
    return tree, is_new


def _move_into_place(tree: Path, dest: Path, files: list[FileEntry], *, whole: bool) -> None:
    if whole:
        tree.rename(dest)
        return
    for file in files:
        target = dest / file.path
        for folder in reversed(Path(file.path).parents[:-1]):
            _make_folder(dest / folder)
        if target.is_dir() and not target.is_symlink():
            raise NameTaken(f"{target} is a folder; a file with this name cannot be written.")
        (tree / file.path).rename(target)


def _make_folder(path: Path) -> None:
    """Create a folder, but never follow a symbolic link, which could lead anywhere."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise NameTaken(f"{path} is not a folder; files cannot be written into it.")
    path.mkdir(exist_ok=True)


def _chunks(file: FileEntry) -> Iterator[tuple[str, int, int]]:
    offset = 0
    for chunk in file.chunks:
        yield chunk.hash, chunk.size, offset
        offset += chunk.size


def _mode(file: FileEntry) -> int:
    return 0o755 if file.executable else 0o644
