"""`shoal://NAME[@VERSION]/path`: datasets as a read-only fsspec filesystem, so pandas, pyarrow, datasets and webdataset read them.

A read fetches the chunks that cover it and no others. `NAME` is pinned to its newest version when first used.
"""

from __future__ import annotations

import io
import os
import threading
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.datasets import DatasetStatus, split_version
from shoal.core.errors import InvalidSpec, MissingExtra, NotFound, ShoalError
from shoal.data.cache import ChunkCache, cache_dir, cache_limit
from shoal.data.chunks import Chunks
from shoal.data.remote import TIMEOUT_S, Access, Remote
from shoal.store.manifest import load_manifest, manifest_id

try:
    import fsspec
    from fsspec.spec import AbstractFileSystem
except ImportError as error:
    raise MissingExtra(
        "Streaming data needs fsspec, which comes with torch.", hint="pip install 'shoal[data]'"
    ) from error

PROTOCOL = "shoal"
READ_AHEAD = 4
"""Chunks fetched in advance of a file that is read in order: about two megabytes."""


class ShoalFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Options: `url`, `key` and `workspace` of a server other than the job's or the CLI's; `timeout_s` without an answer;
    `cache_dir` and `cache_bytes` of the cache on disk."""

    protocol = PROTOCOL
    root_marker = ""

    def __init__(
        self,
        *,
        url: str | None = None,
        key: str | None = None,
        workspace: str | None = None,
        timeout_s: float = TIMEOUT_S,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        self._site = _site(url, key, workspace, timeout_s, *_cache_choice(cache_dir, cache_bytes))

    @property
    def fetched(self) -> int:
        """Bytes received from the server by this process."""
        return self._site.remote.fetched

    def pin(self, reference: str) -> str:
        """NAME@VERSION of a dataset that may have been named without version."""
        return self._site.tree(reference).pinned

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if not path:
            names = {d.name for d in self._site.remote.datasets() if d.status == DatasetStatus.AVAILABLE}
            found = [_folder(name) for name in sorted(names)]
        else:
            tree, reference, inside = self._find(path)
            if inside in tree.files:
                found = [self.info(path)]
            else:
                found = [
                    _folder(f"{reference}/{name}") if size is None else _file(f"{reference}/{name}", size)
                    for name, size in tree.listing(inside)
                ]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if not path:
            return _folder("")
        tree, _reference, inside = self._find(path)
        if inside in tree.files:
            return _file(path, tree.files[inside].size)
        if inside and inside not in tree.folders:
            raise FileNotFoundError(f"There is no '{inside}' in dataset '{tree.pinned}'.")
        return _folder(path)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        if maxdepth is not None or withdirs or not self._strip_protocol(path):
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        tree, reference, inside = self._find(self._strip_protocol(path))
        found = {
            f"{reference}/{name}": _file(f"{reference}/{name}", entry.size)
            for name, entry in tree.files.items()
            if not inside or name == inside or name.startswith(f"{inside}/")
        }
        return found if detail else list(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        entry = self.entry(path)
        low, high, _step = slice(start, end).indices(entry.size)
        return self.read_range(entry, low, high)

    def entry(self, path: str) -> FileEntry:
        """A file's place in its manifest."""
        tree, _reference, inside = self._find(self._strip_protocol(path))
        if inside not in tree.files:
            kind = IsADirectoryError if not inside or inside in tree.folders else FileNotFoundError
            raise kind(f"There is no file '{inside}' in dataset '{tree.pinned}'.")
        return tree.files[inside]

    def read_range(self, entry: FileEntry, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file, verified."""
        if start >= end:
            return b""
        ends = _ends(entry)
        first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
        pieces = self._site.chunks.get(entry.chunks[first : last + 1])
        if first == last:
            offset = ends[first] - entry.chunks[first].size
            return pieces[0][start - offset : end - offset]
        joined = memoryview(b"".join(pieces))
        offset = ends[first] - entry.chunks[first].size
        return bytes(joined[start - offset : end - offset])

    def warm(self, entry: FileEntry, start: int, count: int = READ_AHEAD) -> None:
        """Fetch the chunks from `start` on in the background."""
        first = bisect_right(_ends(entry), start)
        self._site.chunks.warm(entry.chunks[first : first + count])

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        if mode != "rb":
            raise io.UnsupportedOperation("Datasets are immutable; push a new version with: shoal dataset push")
        return ShoalFile(self, path)

    def _find(self, path: str) -> tuple[Tree, str, str]:
        reference, _, inside = path.partition("/")
        return self._site.tree(reference), reference, inside

    # What the base class would try to do for a writable filesystem.
    def created(self, path: str) -> Any:
        raise io.UnsupportedOperation("Files in datasets carry no time.")

    modified = created


class ShoalFile(io.BufferedReader):
    """An open file. fsspec's callers look at `size`, `path` and `mode`."""

    def __init__(self, fs: ShoalFileSystem, path: str):
        raw = _Raw(fs, fs.entry(path))
        super().__init__(raw, buffer_size=64 << 10)
        self.fs, self.path, self.size = fs, path, raw.size

    @property
    def mode(self) -> str:
        return "rb"


class _Raw(io.RawIOBase):
    def __init__(self, fs: ShoalFileSystem, entry: FileEntry):
        self._fs, self._entry = fs, entry
        self.size = entry.size
        self._at = self._expected = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise ValueError(f"negative seek position {origin + offset}")
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self.size)
        data = self._fs.read_range(self._entry, self._at, end)
        view[: len(data)] = data
        if self._at == self._expected:
            self._fs.warm(self._entry, end)
        self._at = self._expected = self._at + len(data)
        return len(data)


class Tree:
    """One version of a dataset: its files, and the folders they imply."""

    def __init__(self, pinned: str, manifest: Manifest):
        self.pinned = pinned
        self.files = {f.path: f for f in sorted(manifest.files, key=lambda f: f.path)}
        self.folders: dict[str, dict[str, int | None]] = {"": {}}
        for path, entry in self.files.items():
            self._place(path, entry.size)

    def listing(self, folder: str) -> list[tuple[str, int | None]]:
        """(path, size) of what lies directly in a folder; a folder's size is None."""
        if folder not in self.folders:
            raise FileNotFoundError(f"There is no '{folder}' in dataset '{self.pinned}'.")
        prefix = f"{folder}/" if folder else ""
        return [(prefix + name, size) for name, size in sorted(self.folders[folder].items())]

    def _place(self, path: str, size: int | None) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = {}
            self._place(folder, None)
        self.folders[folder][name] = size


class _Site:
    """A server and workspace, shared by all filesystem objects of this process that point there."""

    def __init__(self, remote: Remote, cache: ChunkCache):
        self.remote = remote
        self.chunks = Chunks(remote, cache)
        self._trees: dict[str, Tree] = {}
        self._lock = threading.RLock()

    def tree(self, reference: str) -> Tree:
        with self._lock:
            if reference not in self._trees:
                found = self._load(reference)
                self._trees[reference] = self._trees.setdefault(found.pinned, found)
            return self._trees[reference]

    def _load(self, reference: str) -> Tree:
        try:
            name, _version = split_version(reference)
            view = self.remote.dataset(reference)
            pinned = f"{view.name}@{view.version}"
            if pinned in self._trees:
                return self._trees[pinned]
            kept = self.chunks.cache.root / "manifests" / f"{view.manifest_id}.json"
            return Tree(pinned, _kept_manifest(kept, view.manifest_id) or self._fetch_manifest(pinned, kept))
        except (NotFound, InvalidSpec) as error:
            raise FileNotFoundError(error.message if error.hint is None else f"{error.message} {error.hint}") from error

    def _fetch_manifest(self, pinned: str, kept: Path) -> Manifest:
        data = self.remote.manifest(pinned)
        manifest = load_manifest(data)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            aside = kept.with_name(f".{kept.name}.{os.getpid()}.{threading.get_ident()}")
            aside.write_bytes(data)
            aside.replace(kept)
        except OSError:
            pass  # Only saves the next process a request.
        return manifest


def _kept_manifest(path: Path, expected: str | None) -> Manifest | None:
    try:
        manifest = load_manifest(path.read_bytes())
    except (OSError, ShoalError):
        return None
    return manifest if manifest_id(manifest) == expected else None


@lru_cache(maxsize=32)
def _site(
    url: str | None, key: str | None, workspace: str | None, timeout_s: float, cache: Path, limit: int
) -> _Site:
    return _Site(Remote(Access(url, key, workspace), timeout_s=timeout_s), ChunkCache(cache, limit))


def _cache_choice(folder: str | None, limit: int | None) -> tuple[Path, int]:
    return Path(folder).absolute() if folder else cache_dir(), cache_limit() if limit is None else limit


@lru_cache(maxsize=4096)
def _ends_of(entry_id: int, chunks_id: int) -> None: ...


def _ends(entry: FileEntry) -> list[int]:
    """Where each chunk of a file ends."""
    return list(accumulate(c.size for c in entry.chunks))


def _file(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "size": size, "type": "file"}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


fsspec.register_implementation(PROTOCOL, ShoalFileSystem, clobber=True)
