"""`shoal://NAME[@VERSION]/path`: datasets as a read-only fsspec filesystem, for pandas, pyarrow, datasets and webdataset.

A read fetches only the chunks that cover it. `NAME` without a version means the version that is newest at its first use.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from shoal.core.datasets import DatasetStatus
from shoal.core.errors import MissingExtra, NotFound, UsageError
from shoal.data.cache import cache_dir as default_cache_dir
from shoal.data.cache import cache_limit
from shoal.data.remote import TIMEOUT_S, Access
from shoal.data.trees import FileChunks, Site, Tree, site

try:
    import fsspec
    from fsspec.spec import AbstractFileSystem
except ImportError as error:
    raise MissingExtra("Streaming data needs fsspec, which comes with torch.", hint="pip install fsspec") from error

PROTOCOL = "shoal"
_BUFFER = 64 << 10


class ShoalFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Read-only fsspec filesystem of the datasets of a workspace.

    Args:
        server: URL of the server. Default: that of the job, else that of the CLI.
        key: API key.
        workspace: Workspace. Default: that of the job, else that of the CLI.
        timeout_s: Seconds to wait for a server that does not answer.
        cache_dir: Directory of the cache on disk.
        cache_bytes: Maximum size of the cache in bytes.

    Example::

        frame = pandas.read_csv("shoal://reviews@3/train.csv")
    """

    protocol = PROTOCOL
    root_marker = ""
    cachable = False  # `site` shares connections and caches, and follows changes of the environment.

    def __init__(
        self,
        *,
        server: str | None = None,
        key: str | None = None,
        workspace: str | None = None,
        timeout_s: float = TIMEOUT_S,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        self._site = site(
            Access(server, key, workspace),
            timeout_s,
            Path(cache_dir).absolute() if cache_dir else default_cache_dir(),
            cache_limit() if cache_bytes is None else cache_bytes,
        )

    @property
    def fetched(self) -> int:
        """Number of bytes of chunks that this process has received from the server."""
        return self._site.remote.fetched

    def pin(self, reference: str) -> str:
        """Return NAME@VERSION of a dataset that may be given without a version."""
        return self._tree(reference).pinned

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        reference, _slash, inside = path.partition("/")
        if not path:
            available = [d for d in self._site.remote.datasets() if d.status == DatasetStatus.AVAILABLE]
            names = sorted({d.name for d in available})
        elif inside in self._tree(reference).files:
            names = [path]
        else:
            names = [f"{reference}/{name}" for name in self._tree(reference).listing(inside)]
        return [_folder(name) if not path else self.info(name) for name in names] if detail else names

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        reference, _slash, inside = path.partition("/")
        if not path:
            return _folder("")
        tree = self._tree(reference)
        return _folder(path) if inside in tree.folders else _file(path, tree.file(inside))

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        reference, _slash, inside = self._strip_protocol(path).partition("/")
        if maxdepth is not None or withdirs or not reference:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        found = {
            f"{reference}/{name}": file
            for name, file in self._tree(reference).files.items()
            if not inside or name == inside or name.startswith(f"{inside}/")
        }
        return {name: _file(name, file) for name, file in found.items()} if detail else list(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        file = self._file(path)
        low, high, _step = slice(start, end).indices(file.size)
        return self._site.read(file, low, high)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        if mode != "rb":
            raise io.UnsupportedOperation("A dataset cannot be changed; push a new version: shoal dataset push")
        return ShoalFile(self, path, _Raw(self._site, self._file(path)))

    def _file(self, path: str) -> FileChunks:
        reference, _slash, inside = self._strip_protocol(path).partition("/")
        return self._tree(reference).file(inside)

    def _tree(self, reference: str) -> Tree:
        try:
            return self._site.tree(reference)
        except (NotFound, UsageError) as error:
            raise FileNotFoundError(error.message) from error


class ShoalFile(io.BufferedReader):
    """Open file, with the attributes `size`, `path` and `mode` that callers of fsspec use."""

    def __init__(self, fs: ShoalFileSystem, path: str, raw: _Raw):
        super().__init__(raw, buffer_size=_BUFFER)
        self.fs, self.path, self.size = fs, path, raw.size

    @property
    def mode(self) -> str:
        return "rb"


class _Raw(io.RawIOBase):
    """Unbuffered file that reads ahead as long as it is read in order."""

    def __init__(self, where: Site, file: FileChunks):
        self._site, self._file = where, file
        self.size = file.size
        self._at = self._expected = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        target = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence] + offset
        if target < 0:
            raise ValueError(f"negative seek position {target}")
        self._at = target
        return target

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self.size)
        if self._at == self._expected and self._at:
            self._site.warm(self._file, self._at)
        data = self._site.read(self._file, self._at, end)
        view[: len(data)] = data
        self._at = self._expected = self._at + len(data)
        return len(data)


def _file(name: str, file: FileChunks) -> dict[str, Any]:
    return {"name": name, "size": file.size, "type": "file", "ETag": file.tag}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


fsspec.register_implementation(PROTOCOL, ShoalFileSystem, clobber=True)
