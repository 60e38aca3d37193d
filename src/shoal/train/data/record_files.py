"""Files of records, which are written in one go and read by number without loading them.

A record is an int32 with its length, followed by its bytes. An index next to the file has the positions; it is created if it
is missing or does not match the file. All numbers are little-endian.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import secrets
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from shoal.core.errors import UsageError
from shoal.train.data.files import INDEX_SUFFIX, Paths, expand

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<i")
_HEAD = struct.Struct("<8sqqq")
_MAGIC = b"SHOALIX1"
_LARGEST = 2**31 - 1


class RecordWriter:
    """Writer of a file of records. The file becomes visible when it is complete.

    Args:
        path: The file to write.

    Example:
        >>> with RecordWriter("train.rec") as writer:
        ...     writer.write(b"…")
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._ends = array("q")
        self._at = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = _beside(self.path)
        self._file: BinaryIO = self._temporary.open("xb", buffering=1 << 20)

    def __len__(self) -> int:
        return len(self._ends)

    def write(self, record: bytes) -> None:
        """Append a record."""
        if len(record) > _LARGEST:
            raise UsageError(f"a record of {len(record)} bytes is too large", hint="split it: the limit is 2 GiB")
        self._file.write(_LENGTH.pack(len(record)))
        self._file.write(record)
        self._at += _LENGTH.size + len(record)
        self._ends.append(self._at)

    def close(self) -> None:
        """Make the file visible and write its index."""
        if self._file.closed:
            return
        self._file.close()
        self._temporary.replace(self.path)
        _keep_index(self.path, self._ends)

    def discard(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


def write_records(
    path: str | os.PathLike[str], samples: Iterable[Any], *, encode: Callable[[Any], bytes] = bytes
) -> int:
    """Write samples to a file of records and return their number.

    Args:
        path: The file to write.
        samples: The samples.
        encode: Turns a sample into bytes.

    Example:
        >>> write_records("train.rec", samples, encode=lambda sample: json.dumps(sample).encode())
    """
    with RecordWriter(path) as writer:
        for sample in samples:
            writer.write(encode(sample))
        return len(writer)


class RecordReader:
    """Records of files by number, as bytes. The files are memory-mapped, so processes share the memory.

    Args:
        paths: Files, folders, patterns, or a list of them.

    Example:
        >>> reader = RecordReader("feat/train/*.rec")
        >>> first, count = reader[0], len(reader)
    """

    def __init__(self, paths: Paths):
        self.paths = expand(paths)
        self._ends = [_index_of(path) for path in self.paths]
        self._first = [0, *itertools.accumulate(map(len, self._ends))]
        self._maps: list[mmap.mmap | None] = [None] * len(self.paths)

    def __len__(self) -> int:
        return self._first[-1]

    def __getitem__(self, index: int) -> bytes:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        file = bisect_right(self._first, index) - 1
        number = index - self._first[file]
        ends = self._ends[file]
        start = ends[number - 1] if number else 0
        mapped = self._maps[file]
        if mapped is None:
            mapped = self._maps[file] = _mapped(self.paths[file])
        return mapped[start + _LENGTH.size : ends[number]]

    def counts(self) -> list[int]:
        """Return the number of records in each file."""
        return [len(ends) for ends in self._ends]

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordReader, (self.paths,)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _index_of(path: Path) -> Sequence[int]:
    """Return the end offset of each record."""
    try:
        facts = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not facts.st_size:
        return array("q")
    kept = _read_index(path, facts)
    if kept is not None:
        return kept
    found = _scan(path)
    _keep_index(path, found)
    return found


def _scan(path: Path) -> array[int]:
    ends = array("q")
    with contextlib.closing(_mapped(path)) as mapped:
        at, size = 0, len(mapped)
        while at < size:
            length = _LENGTH.unpack_from(mapped, at)[0] if at + _LENGTH.size <= size else -1
            end = at + _LENGTH.size + length
            if length < 0 or end > size:
                raise UsageError(
                    f"{path} is not a complete file of records: record {len(ends)}, which starts at byte {at}, "
                    + ("has no length" if length < 0 else f"has a length of {length} bytes, but the file ends before"),
                    hint="write the file again, with shoal.train.data.RecordWriter",
                )
            ends.append(end)
            at = end
    return ends


def _read_index(path: Path, facts: os.stat_result) -> Sequence[int] | None:
    if sys.byteorder != "little":
        return None
    try:
        mapped = _mapped(_index_path(path))
        magic, size, changed, count = _HEAD.unpack_from(mapped)
    except (OSError, ValueError, struct.error):
        return None
    if (magic, size, changed) != (_MAGIC, facts.st_size, facts.st_mtime_ns) or len(mapped) != _HEAD.size + 8 * count:
        return None
    return memoryview(mapped)[_HEAD.size :].cast("q")


def _keep_index(path: Path, ends: array[int]) -> None:
    """Write the index next to the file if possible; otherwise the next reader scans the file again."""
    if sys.byteorder != "little":
        return
    temporary = _beside(path)
    try:
        facts = path.stat()
        with temporary.open("xb") as file:
            file.write(_HEAD.pack(_MAGIC, facts.st_size, facts.st_mtime_ns, len(ends)))
            ends.tofile(file)
        temporary.replace(_index_path(path))
    except OSError as error:
        logger.info("could not write the index of %s: %s", path, error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _index_path(path: Path) -> Path:
    return path.with_name(path.name + INDEX_SUFFIX)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
