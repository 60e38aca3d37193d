"""Readers of known file kinds for `dataset check`. Each reader raises its library's own error at the first problem."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

SHORTEST_LINE = 20
"""Minimum length in characters of a text line that is compared; shorter lines (headings, names) often repeat by chance."""
_LONGEST_FIELD = 1 << 30
_LARGEST_JSON = 512 << 20
_BLOCK = 1 << 20

Found = Iterator[tuple[int, bytes]]
"""Pairs (line, content to compare) for each sample; samples with empty content are not compared."""


class Unreadable(Exception):
    """Problem of a file, described in a text that is shown as it is."""


class Records:
    """Reader of one file, from start to end."""

    def __init__(self, path: str):
        self._name = path.lower().removesuffix(".gz")
        self._kind = file_kind(path)
        self._is_gzip = path.lower().endswith(".gz") and self._kind != "tar"
        self.line = 0
        """Number of the line that is being read."""
        self.notes: list[str] = []

    @property
    def has_lines(self) -> bool:
        return self._kind in ("jsonl", "csv", "text")

    def read(self, stream: IO[bytes]) -> Found:
        readers: dict[str, Callable[[IO[bytes]], Found]] = {
            "jsonl": self._jsonl,
            "json": self._json,
            "csv": self._csv,
            "text": self._text,
            "zip": self._zip,
            "tar": self._tar,
            "parquet": self._parquet,
            "arrow": self._arrow,
            "gzip": self._all,
        }
        plain = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if self._is_gzip else stream
        return readers[self._kind or "gzip"](plain)

    def _jsonl(self, stream: IO[bytes]) -> Found:
        for self.line, line in enumerate(stream, 1):
            if line.strip():
                value = json.loads(line)
                yield self.line, json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    def _json(self, stream: IO[bytes]) -> Found:
        data = stream.read(_LARGEST_JSON + 1)
        if len(data) > _LARGEST_JSON:
            self.notes.append(f"JSON files above {_LARGEST_JSON >> 20} MiB were not read.")
        else:
            json.loads(data)
        yield from ()

    def _csv(self, stream: IO[bytes]) -> Found:
        csv.field_size_limit(_LONGEST_FIELD)
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        rows = csv.reader(text, delimiter="\t" if self._name.endswith(".tsv") else ",", strict=True)
        columns: int | None = None
        for row in rows:
            self.line = rows.line_num
            if columns is None:
                columns = len(row)  # the first row names them
                continue
            if len(row) > columns:
                raise Unreadable(f"has {len(row)} fields where the first line has {columns}")
            if row:
                yield self.line, "\x1f".join(row).encode()

    def _text(self, stream: IO[bytes]) -> Found:
        for self.line, line in enumerate(stream, 1):
            text = line.decode().strip()
            if len(text) >= SHORTEST_LINE:
                yield self.line, text.encode()

    def _zip(self, stream: IO[bytes]) -> Found:
        with zipfile.ZipFile(stream) as archive:
            bad = archive.testzip()
        if bad is not None:
            raise Unreadable(f"the archive is damaged at {bad}")
        yield from ()

    def _tar(self, stream: IO[bytes]) -> Found:
        with tarfile.open(fileobj=stream, mode="r:*") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                while content is not None and content.read(_BLOCK):
                    pass
        yield from ()

    def _parquet(self, stream: IO[bytes]) -> Found:
        if parquet := self._pyarrow("pyarrow.parquet"):
            file = parquet.ParquetFile(stream)
            for group in range(file.num_row_groups):
                file.read_row_group(group)
            if not file.metadata.num_rows:
                raise Unreadable("contains no rows")
        else:
            head = stream.read(4)
            stream.seek(-8, io.SEEK_END)
            tail = stream.read(8)
            if head != b"PAR1" or tail[4:] != b"PAR1" or int.from_bytes(tail[:4], "little") + 12 > stream.tell():
                raise Unreadable("is not a complete parquet file")
        yield from ()

    def _arrow(self, stream: IO[bytes]) -> Found:
        head = stream.read(8)
        stream.seek(0)
        is_file = head.startswith(b"ARROW1")
        if not is_file and not head.startswith(b"\xff\xff\xff\xff"):
            raise Unreadable("is not an arrow file")
        if ipc := self._pyarrow("pyarrow.ipc"):
            rows = 0
            if is_file:
                reader = ipc.open_file(stream)
                for index in range(reader.num_record_batches):
                    rows += reader.get_batch(index).num_rows
            else:
                for batch in ipc.open_stream(stream):
                    rows += batch.num_rows
            if not rows:
                raise Unreadable("contains no rows")
        yield from ()

    def _all(self, stream: IO[bytes]) -> Found:
        while stream.read(_BLOCK):
            pass
        yield from ()

    def _pyarrow(self, module: str) -> Any:
        import importlib

        try:
            return importlib.import_module(module)
        except ImportError:
            self.notes.append(
                "Only the start and end of parquet and arrow files were checked. To check all of them: pip install pyarrow"
            )
            return None


def file_kind(path: str) -> str | None:
    """Return the kind of reader that a file needs; None for files that are not opened."""
    from shoal.store.archives.types import archive_kind

    name = path.lower()
    if archive_kind(name):
        return "zip" if name.endswith(".zip") else "tar"
    kinds = {
        "jsonl": "jsonl", "ndjson": "jsonl", "json": "json", "csv": "csv", "tsv": "csv", "txt": "text",
        "parquet": "parquet", "arrow": "arrow", "feather": "arrow",
    }  # fmt: skip
    kind = kinds.get(name.removesuffix(".gz").rpartition(".")[2])
    return kind or ("gzip" if name.endswith(".gz") else None)


def unreadable(error: Exception, records: Records) -> tuple[int | None, str]:
    """Return the line number of an error, if known, and a description on one line."""
    line = records.line or None if records.has_lines else None
    if isinstance(error, json.JSONDecodeError):
        if not records.has_lines:
            line = error.lineno
        return line, f"is not JSON: {error.msg} (column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return line, "is not UTF-8 text"
    text = str(error).strip().partition("\n")[0][:200]
    return line, text if isinstance(error, Unreadable) else f"cannot be read: {text or type(error).__name__}"
