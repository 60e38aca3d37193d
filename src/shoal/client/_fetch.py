"""Trees on their way here: many chunks per request, in parallel, continued where an earlier fetch was cut off.

What arrives is gathered in a private folder beside (or in) the destination and moved there when it is whole.
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

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import Corrupt, NameTaken, NotFound, Refused, ShoalError
from shoal.store.files import disk_errors, read_exact, write_at
from shoal.store.hashing import Data, chunk_hash
from shoal.store.manifest import manifest_id
from shoal.store.transfer import in_parallel

if TYPE_CHECKING:
    from shoal.store.pack import Progress

BATCH_BYTES, LARGEST_BATCH = 16 << 20, 64 << 20
"""What one request asks for. It is written as it comes, so that a large one takes no more memory, and fewer cost less."""
BATCH_COUNT = 1024
RUN_BYTES = 4 << 20
THREADS = 4
MOST_NAMED = 5

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Source(Protocol):
    """Where chunks come from."""

    def get_many(self, names: Sequence[str]) -> Iterator[tuple[str, Data]]:
        """Each of them, verified, in any order; some may be views of one larger piece of memory."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    path: Path
    files: int
    size: int
    received: int
    """Bytes that had to be fetched; the rest was here already."""


def fetch_tree(
    manifest: Manifest, source: Source, dest: Path, *, force: bool = False, progress: Progress | None = None
) -> Fetched:
    """Make `dest` hold the files of a (checked) manifest. What is there already, with the same content, is not fetched again.

    Other content under the same path is NameTaken, unless `force` lets it be replaced. Files of other names stay.
    """
    dest = Path(os.path.abspath(dest))  # noqa: PTH100  a link given as destination is meant
    report = progress or (lambda _: None)
    with disk_errors(dest):
        here = _already_there(manifest, dest, force)
        report(sum(f.size for f in manifest.files if f.path in here))
        wanted = [f for f in manifest.files if f.path not in here]
        inside = dest.exists()
        # In the destination where it exists: that may be another disk than its parent.
        parent = dest if inside else dest.parent
        aside = parent / f".{'' if inside else dest.name[:80] + '.'}{manifest_id(manifest)[:16]}.partial"
        tree, is_new = _open_aside(aside)
        received = _Filling(tree, wanted, report).run(source, is_new=is_new)
        _settle(tree, dest, wanted, whole=not inside)
        shutil.rmtree(aside)
    return Fetched(dest, len(manifest.files), manifest.size, received)


class _Filling:
    """Files of a private folder, filled chunk by chunk, in any order and by several threads."""

    def __init__(self, root: Path, files: list[FileEntry], report: Progress):
        self._root, self._files, self._report = root, files, report
        self._places: dict[str, list[tuple[FileEntry, int]]] = {}
        """Hash → everywhere it has to be written."""
        self._sizes: dict[str, int] = {}

    def run(self, source: Source, *, is_new: bool) -> int:
        for folder in sorted({f.path.rpartition("/")[0] for f in self._files}):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-look") as pool:
            look = map if is_new else pool.map
            for file, lacking in zip(self._files, look(self._lacking, self._files), strict=True):
                for name, size, offset in lacking:
                    self._places.setdefault(name, []).append((file, offset))
                    self._sizes[name] = size

        def take(names: list[str]) -> int:
            return self._take(names, source)

        return sum(in_parallel(take, self._batches(), THREADS))

    def _lacking(self, file: FileEntry) -> list[tuple[str, int, int]]:
        """(hash, size, offset) of what has to be fetched; what an earlier fetch left is kept if it is right."""
        path = self._root / file.path
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
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
        batch: list[str] = []
        size = 0
        most = min(max(sum(self._sizes.values()) // (4 * THREADS), BATCH_BYTES), LARGEST_BATCH)
        for name, length in self._sizes.items():
            if batch and (size + length > most or len(batch) >= BATCH_COUNT):
                yield batch
                batch, size = [], 0
            batch.append(name)
            size += length
        if batch:
            yield batch

    def _take(self, names: list[str], source: Source) -> int:
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
        """The same error, saying which file it hurts."""
        places = self._places.get(str(error.details.get("hash")), [])
        if not places:
            return error
        what = "damaged" if isinstance(error, Corrupt) else "missing"
        return Corrupt(
            f"{places[0][0].path} cannot be fetched: a part of it is {what} in the store.",
            hint="See all that is hurt: shoal store check. Pushing the same files again heals it after --quarantine.",
            details=error.details | {"path": places[0][0].path},
        )


class _Run:
    """Chunks that lie one after another in a file, gathered to be written with one call."""

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
    """Paths of the manifest that `dest` holds with the same content."""
    if not dest.exists():
        return set()
    if not dest.is_dir():
        raise NameTaken(f"{dest} is a file.", hint="Give another place: --destination DIR")
    found = [f for f in manifest.files if os.path.lexists(dest / f.path)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-look") as pool:
        same = {
            f.path for f, is_same in zip(found, pool.map(lambda f: _is_same(dest, f), found), strict=True) if is_same
        }
    others = [f.path for f in found if f.path not in same]
    if others and not force:
        named = ", ".join(others[:MOST_NAMED]) + (", …" if len(others) > MOST_NAMED else "")
        raise NameTaken(
            f"{dest} holds other content under the same names: {named}.",
            hint="Give another place (--destination DIR), or replace them: --force",
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
    """The tree in the private folder, and whether it is new, not as an earlier fetch of ours left it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = True
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        is_new = False
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise Refused(f"{path} is in the way.", hint=f"rm -r {path}") from None
    tree = path / "tree"
    tree.mkdir(exist_ok=True)
    return tree, is_new


def _settle(tree: Path, dest: Path, files: list[FileEntry], *, whole: bool) -> None:
    if whole:
        tree.rename(dest)
        return
    for file in files:
        target = dest / file.path
        for folder in reversed(Path(file.path).parents[:-1]):
            _make_folder(dest / folder)
        if target.is_dir() and not target.is_symlink():
            raise NameTaken(f"{target} is a folder, and a file of that name is to be written.")
        (tree / file.path).rename(target)


def _make_folder(path: Path) -> None:
    """Never through a link: it might lead anywhere."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise NameTaken(f"{path} is not a folder, and files are to be written into it.")
    path.mkdir(exist_ok=True)


def _chunks(file: FileEntry) -> Iterator[tuple[str, int, int]]:
    offset = 0
    for chunk in file.chunks:
        yield chunk.hash, chunk.size, offset
        offset += chunk.size


def _mode(file: FileEntry) -> int:
    return 0o755 if file.executable else 0o644
