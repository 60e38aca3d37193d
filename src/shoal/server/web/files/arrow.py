"""First rows of Parquet and Arrow files. A separate process with limits reads them (`arrow_reader`); this serves its bytes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.core.artifacts import FileEntry
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.web.format import plural

ENDINGS = {"parquet": "parquet", "arrow": "arrow", "feather": "arrow", "ipc": "arrow"}
MOST_BYTES = 256 << 20
TIMEOUT_S = 10.0
_AT_ONCE = threading.BoundedSemaphore(2)
_KEPT = 64
_MOST_TOLD = 32 << 20


class Beginning(View):
    """The beginning of a table."""

    about: str
    """Size of the whole table, or why nothing can be shown."""
    rows: list[list[str]] = []
    """Names of the columns, then the first rows."""


def beginning(ctx: Context, entry: FileEntry, kind: str, *, rows: int, columns: int) -> Beginning:
    if importlib.util.find_spec("pyarrow") is None:
        return Beginning(about="The server needs pyarrow to show Parquet and Arrow files: pip install pyarrow.")
    chunks = tuple((chunk.hash, chunk.size) for chunk in entry.chunks)
    return _read(_Store(ctx.store.get), chunks, kind, rows, columns)


class _Store:
    """Store that is not part of the cache's key: all instances are equal, because equal hashes are equal bytes."""

    def __init__(self, get: Callable[[str], bytes]):
        self.get = get

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Store)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(_KEPT)
def _read(store: _Store, chunks: tuple[tuple[str, int], ...], kind: str, rows: int, columns: int) -> Beginning:
    size = sum(length for _, length in chunks)
    with _AT_ONCE:
        told = _run_reader(_Bytes(store, chunks), [kind, str(size), str(rows), str(columns)])
    if told is None:
        return Beginning(about="This file cannot be shown; download it to view it.")
    if "error" in told:
        return Beginning(about=f"This file cannot be read: {told['error']}")
    total = plural(told["total"], "row") if told["total"] is not None else "Rows"
    return Beginning(about=f"{total} of {plural(told['columns'], 'column')}", rows=told["rows"])


class _Bytes:
    """Bytes of a file by offset; the last chunks read are cached."""

    def __init__(self, store: _Store, chunks: tuple[tuple[str, int], ...]):
        self.chunks, self.left = chunks, MOST_BYTES
        self.get = functools.lru_cache(4)(store.get)

    def read(self, offset: int, length: int) -> bytes:
        self.left -= length
        if length < 0 or self.left < 0:
            raise ValueError("the reader requested too many bytes")
        parts, start = [], 0
        for digest, size in self.chunks:
            if start < offset + length and offset < start + size:
                parts.append(self.get(digest)[max(0, offset - start) : offset + length - start])
            start += size
        return b"".join(parts)


def _run_reader(source: _Bytes, arguments: list[str]) -> dict[str, Any] | None:
    reader = Path(__file__).with_name("arrow_reader.py")
    process = subprocess.Popen(
        [sys.executable, "-I", str(reader), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={},
    )  # fmt: skip
    killer = threading.Timer(TIMEOUT_S, process.kill)
    killer.start()
    try:
        return _serve(process, source)
    except (OSError, ValueError):
        return None
    finally:
        killer.cancel()
        process.kill()
        with contextlib.suppress(OSError):
            process.communicate()


def _serve(process: subprocess.Popen[bytes], source: _Bytes) -> dict[str, Any] | None:
    if process.stdin is None or process.stdout is None:
        return None
    while line := process.stdout.readline(_MOST_TOLD):
        if line.startswith(b"{"):
            told = json.loads(line)
            return told if isinstance(told, dict) else None
        offset, length = map(int, line.split())
        process.stdin.write(source.read(offset, length))
        process.stdin.flush()
    return None
