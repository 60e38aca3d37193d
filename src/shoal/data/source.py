"""Sources of a stream's files: a dataset on the server or mounted in this job, a folder, S3 or another URL for fsspec."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from shoal.core.errors import Corrupt, Forbidden, InvalidSpec, MissingExtra, NotFound, Refused, Unreachable
from shoal.core.s3_url import parse_s3_url
from shoal.data.forks import renew_after_fork
from shoal.data.pool import pool

PIECE = 512 << 10
"""Bytes per read of a file that is read in order."""
WARM_LIMIT = 192
"""Maximum number of reads that were started ahead and not used yet; the oldest are dropped."""
_BEYOND = 64 << 10
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CLOUDS = frozenset({"s3", "gs", "az", "abfs", "abfss"})
_store_pid: int | None = None
"""Id of the process that first used obstore."""
_WILD = re.compile(r"[*?\[]")


class File(NamedTuple):
    path: str
    """Path below the source's root."""
    size: int
    stamp: str = ""
    """Value that changes with the content (ETag or time), if the filesystem has one."""


class Source:
    """Files below one root. Safe to pickle, to fork, and to use from several threads."""

    def __init__(self, label: str, url: str, files: list[File], options: Mapping[str, Any], pinned: str | None = None):
        self.label = label
        """Name for messages, as the user gave it."""
        self.pinned = pinned
        """NAME@VERSION of a dataset on the server, else None."""
        self.files = files
        self._url, self._options = url, dict(options)
        self._sizes = {f.path: f.size for f in files}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._opened: tuple[Any, str] | None = None
        self._warm: dict[tuple[str, int, int], Future[bytes]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_opened", "_warm", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.after_fork()
        renew_after_fork(self)

    @property
    def is_local(self) -> bool:
        return self._url.startswith("file://")

    @property
    def reads_anywhere(self) -> bool:
        """True if small reads anywhere in a file are cheap, because they need no request each."""
        return self.is_local or self._url.startswith("shoal://")

    def read(self, path: str, start: int, end: int) -> bytes:
        with self._lock:
            begun = self._warm.pop((path, start, end), None)
        # A read that failed in the background is tried again: the server may have returned.
        if begun is None or begun.cancel() or (begun.done() and begun.exception()):
            return self._read(path, start, end)
        return begun.result()

    def pieces(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the file's bytes from `start`: read ahead up to `end`, beyond it only on demand."""
        at = start
        while at < end:
            step = min(PIECE, end - at)
            if at + step < end:
                self.warm(path, at + step, end)
            yield self.read(path, at, at + step)
            at += step
        size = self._sizes[path]
        while at < size:
            step = min(_BEYOND, size - at)
            yield self.read(path, at, at + step)
            at += step

    def warm(self, path: str, start: int, end: int) -> None:
        """Start to read the next piece in the background."""
        if self.is_local:
            return
        key = (path, start, min(start + PIECE, end))
        with self._lock:
            if key not in self._warm:
                self._warm[key] = pool.submit(self._read, *key)
            while len(self._warm) > WARM_LIMIT:
                self._warm.pop(next(iter(self._warm))).cancel()

    def open(self, path: str) -> BinaryIO:
        fs, root = self._filesystem()
        with self._reading(path):
            return cast(BinaryIO, fs.open(f"{root}/{path}", "rb"))

    def _read(self, path: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        fs, root = self._filesystem()
        with self._reading(path):
            data: bytes = fs.cat_file(f"{root}/{path}", start=start, end=end)
        if len(data) != end - start:
            raise Corrupt(
                f"{self.label}: {path} gave {len(data)} bytes where {end - start} were requested.",
                hint="The file has changed since the stream was opened, or its server does not support range requests.",
            )
        return data

    def _reading(self, path: str) -> AbstractContextManager[None]:
        return _explained(f"{self.label}: {path} does not exist any more", f"{self.label}: {path}")

    def _filesystem(self) -> tuple[Any, str]:
        # Opened in every process: few filesystems survive a fork.
        if self._opened is None:
            self._opened = open_filesystem(self._url, self._options)
        return self._opened


def open_source(what: str | os.PathLike[str], options: Mapping[str, Any]) -> Source:
    """Open a source.

    Args:
        what: A dataset's NAME[@VERSION][/PATH], a path (absolute, or beginning with . or ~), or a URL; its end may be a
            pattern.
        options: Options of the fsspec filesystem. For S3 they may also stand in the URL (`shoal.core.s3_url`).
    """
    label, url, pinned = os.fspath(what), _to_url(what), None
    if url.startswith("s3://"):
        place = parse_s3_url(url, is_pattern=True)
        url, options = f"s3://{place.bucket}/{place.prefix}".rstrip("/"), {**place.options, **options}
    with _explained(f"There is no data at {label}", label):
        fs, path = open_filesystem(url, options)
        if url.startswith("shoal://"):
            reference, slash, inside = path.partition("/")
            pinned = fs.pin(reference)
            path = f"{pinned}{slash}{inside}"
        root, found = _list(fs, path.rstrip("/"))
    files = [_file(name.removeprefix(f"{root}/"), info) for name, info in found.items()]
    # HTTP's filesystem keeps the scheme in its paths.
    root = root if _SCHEME.match(root) else f"{_scheme(url)}://{root}"
    return Source(label, root, sorted(files), options, pinned)


def open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return fsspec's filesystem for a URL, and the path in it."""
    try:
        import fsspec

        import shoal.data.filesystem  # noqa: F401  registers shoal://
    except ImportError as error:
        raise MissingExtra("Streaming data needs fsspec.", hint="pip install fsspec") from error
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url, **_named_for_s3fs(url, options)))
    except ImportError as error:
        store = _object_store(_scheme(url), options)
        if store is None:
            raise MissingExtra(f"{_scheme(url)}:// needs a package that is not installed: {error}") from error
        return store, url.partition("://")[2].rstrip("/")
    except ValueError as error:
        raise InvalidSpec(str(error)) from error


def _named_for_s3fs(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with `endpoint` and `region` under the names that s3fs has for them."""
    found = dict(options)
    if url.startswith("s3://"):
        if endpoint := found.pop("endpoint", None):
            found.setdefault("endpoint_url", endpoint)
        if region := found.pop("region", None):
            found["client_kwargs"] = {"region_name": region} | found.get("client_kwargs", {})
    return found


def mounted(reference: str) -> Path | None:
    """Return the folder where this job has the dataset mounted, or None; always None if a version is given."""
    if "SHOAL_JOB_ID" not in os.environ or "@" in reference:
        return None
    data = Path(os.environ.get("DATA_LOCATION") or "/input")
    places = [Path("/input") / reference, data / reference, *([data] if data.name == reference else [])]
    return next((place for place in places if place.is_dir()), None)


def _to_url(what: str | os.PathLike[str]) -> str:
    if not isinstance(what, str) or what.startswith(("/", ".", "~")):
        return f"file://{Path(what).expanduser().absolute()}"
    if _SCHEME.match(what):
        return what
    reference, slash, inside = what.partition("/")
    if (folder := mounted(reference)) is not None:
        return f"file://{folder}{slash}{inside}"
    return f"shoal://{what}"


def _object_store(scheme: str, options: Mapping[str, Any]) -> Any:
    """Return obstore's filesystem, for clouds whose own fsspec package is not installed; None without obstore."""
    if scheme not in _CLOUDS:
        return None
    try:
        obstore: Any = import_module("obstore.fsspec")
    except ImportError:
        return None
    global _store_pid
    if _store_pid not in (None, os.getpid()):
        # obstore would wait for ever for threads that exist in the parent only.
        raise Refused(
            "obstore, which reads S3 here, does not work in a process forked after its first use.",
            hint="Use DataLoader(..., multiprocessing_context='spawn'), or pip install s3fs.",
        )
    _store_pid = os.getpid()
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or ""
    plain = {"client_options": {"allow_http": True}} if endpoint.startswith("http://") else {}
    return obstore.FsspecStore(scheme, **plain | dict(options))


def _list(fs: Any, path: str) -> tuple[str, dict[str, Any]]:
    """Return the root folder of a path or pattern, and the description of each file below it."""
    wild = _WILD.search(path)
    if wild:
        root, found = path[: wild.start()].rpartition("/")[0], fs.glob(path, detail=True)
        if not found:
            raise FileNotFoundError("No file matches the pattern.")
    elif (info := fs.info(path))["type"] == "file":
        root, found = path.rpartition("/")[0], {path: info}
    else:
        root, found = path, fs.find(path, detail=True)
    return root, {name: info for name, info in found.items() if info["type"] == "file"}


def _file(path: str, info: Mapping[str, Any]) -> File:
    if info.get("size") is None:
        raise InvalidSpec(f"The size of {path} is unknown, so it cannot be streamed.")
    stamps = (info.get(key) for key in ("e_tag", "ETag", "mtime", "LastModified"))
    return File(path, info["size"], str(next((stamp for stamp in stamps if stamp), "")))


def _scheme(url: str) -> str:
    match = _SCHEME.match(url)
    return match[1] if match else "file"


@contextmanager
def _explained(missing: str, what: str) -> Iterator[None]:
    """Convert errors of filesystems to errors of Shoal."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{missing}: {error}") from error
    except PermissionError as error:
        raise Forbidden(f"There is no permission to read {what}.") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "obstore":
            raise
        raise Unreachable(f"{what} cannot be read: {str(error).strip().partition(chr(10))[0][:300]}") from error
