"""Datasets as trees of files: the chunks of each file, and reading them."""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

from shoal.core.artifacts import Chunk, Manifest
from shoal.core.errors import ShoalError
from shoal.data.cache import ChunkCache
from shoal.data.chunks import Chunks
from shoal.data.forks import renew_after_fork
from shoal.data.remote import Access, Remote
from shoal.store.manifest import load_manifest, manifest_id

READ_AHEAD = 8
"""Number of chunks fetched in advance for a file that is read in order: about four megabytes."""
_SURROUNDINGS = ("SHOAL_HOME", "SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE", "SHOAL_JOB_TOKEN")


class FileChunks:
    def __init__(self, size: int, chunks: Sequence[Chunk]):
        self.size, self._chunks = size, chunks

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(c.size for c in self._chunks))

    @cached_property
    def tag(self) -> str:
        """Hash of the content."""
        return hashlib.blake2b(b"".join(bytes.fromhex(c.hash) for c in self._chunks), digest_size=16).hexdigest()

    def covering(self, start: int, end: int) -> tuple[Sequence[Chunk], int]:
        """Return the chunks that hold bytes [start, end), and the offset of the first one."""
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, end - 1)
        return self._chunks[first : last + 1], self._ends[first] - self._chunks[first].size

    def following(self, start: int) -> Sequence[Chunk]:
        first = bisect_right(self._ends, start)
        return self._chunks[first : first + READ_AHEAD]


class Tree:
    """One version of a dataset: its files and their folders."""

    def __init__(self, pinned: str, manifest: Manifest):
        self.pinned = pinned
        """NAME@VERSION."""
        entries = sorted(manifest.files, key=lambda f: f.path)
        self.files = {f.path: FileChunks(f.size, f.chunks) for f in entries}
        self.folders: dict[str, set[str]] = {"": set()}
        """Folder → names of its direct entries."""
        for path in self.files:
            self._place(path)

    def listing(self, folder: str) -> list[str]:
        """Return the paths of the direct entries of a folder."""
        if folder not in self.folders:
            raise FileNotFoundError(f"There is no '{folder}' in dataset '{self.pinned}'.")
        prefix = f"{folder}/" if folder else ""
        return [prefix + name for name in sorted(self.folders[folder])]

    def file(self, path: str) -> FileChunks:
        if path in self.files:
            return self.files[path]
        if path in self.folders:
            raise IsADirectoryError(f"'{path}' in dataset '{self.pinned}' is a folder.")
        raise FileNotFoundError(f"There is no file '{path}' in dataset '{self.pinned}'.")

    def _place(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = set()
            self._place(folder)
        self.folders[folder].add(name)


class Site:
    """Connection to one server and workspace, shared by all readers in this process."""

    def __init__(self, remote: Remote, cache: ChunkCache):
        self.remote = remote
        self.chunks = Chunks(remote, cache)
        self._trees: dict[str, Tree] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def tree(self, reference: str) -> Tree:
        """Return a dataset by NAME, NAME@VERSION or id. NAME stays at the version that was newest at its first use."""
        with self._lock:
            if reference not in self._trees:
                found = self._load(reference)
                self._trees[reference] = self._trees.setdefault(found.pinned, found)
            return self._trees[reference]

    def read(self, file: FileChunks, start: int, end: int) -> bytes:
        """Return the verified bytes [start, end). Only the chunks that hold them are fetched."""
        if start >= end:
            return b""
        chunks, offset = file.covering(start, end)
        pieces = self.chunks.get(chunks)
        if len(pieces) == 1:
            return pieces[0][start - offset : end - offset]
        last = end - offset - sum(c.size for c in chunks[:-1])
        return b"".join([memoryview(pieces[0])[start - offset :], *pieces[1:-1], memoryview(pieces[-1])[:last]])

    def warm(self, file: FileChunks, start: int) -> None:
        """Fetch the chunks that follow `start` in the background."""
        self.chunks.warm(file.following(start))

    def _load(self, reference: str) -> Tree:
        view = self.remote.dataset(reference)
        pinned = f"{view.name}@{view.version}"
        if pinned in self._trees:
            return self._trees[pinned]
        kept = self.chunks.cache.root / "manifests" / f"{view.manifest_id}.json"
        manifest = _kept(kept, view.manifest_id) or load_manifest(_keep(kept, self.remote.manifest(pinned)))
        return Tree(pinned, manifest)


def site(access: Access, timeout_s: float, cache_root: Path, cache_limit: int) -> Site:
    """Return the site for these settings and the current environment."""
    return _site(access, timeout_s, cache_root, cache_limit, tuple(os.environ.get(name) for name in _SURROUNDINGS))


@lru_cache(maxsize=32)
def _site(access: Access, timeout_s: float, root: Path, limit: int, _around: tuple[str | None, ...]) -> Site:
    return Site(Remote(access, timeout_s=timeout_s), ChunkCache(root, limit))


def _kept(path: Path, expected: str | None) -> Manifest | None:
    try:
        manifest = load_manifest(path.read_bytes())
        os.utime(path)
    except (OSError, ShoalError):
        return None
    return manifest if manifest_id(manifest) == expected else None


def _keep(path: Path, data: bytes) -> bytes:
    """Write a file for later processes, to save them a request; ignore errors. Return the data."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        aside.write_bytes(data)
        aside.replace(path)
    except OSError:
        pass
    return data
