"""Program that reads the first rows of a Parquet or Arrow file. `arrow` starts it as a separate process with limits.

It requests bytes on its standard output, one line each ("offset length"), receives them on its standard input, and ends with
a line of JSON. Whatever the file contains, at worst this process dies.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from typing import Any

MOST_MEMORY, MOST_CPU_S = 4 << 30, 10
CELL = 200


class ParentFile(io.RawIOBase):
    """The file, whose bytes are requested from the parent process."""

    def __init__(self, size: int):
        self.size, self.at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        wanted = self.size - self.at if size < 0 else min(size, self.size - self.at)
        if wanted <= 0:
            return b""
        sys.stdout.write(f"{self.at} {wanted}\n")
        sys.stdout.flush()
        data = sys.stdin.buffer.read(wanted)
        if len(data) != wanted:
            raise SystemExit("the parent process sent too few bytes")
        self.at += wanted
        return data


def main(kind: str, size: int, rows: int, columns: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    file = pyarrow.PythonFile(ParentFile(size), mode="r")
    try:
        total, schema, batch = (_parquet if kind == "parquet" else _arrow)(file, rows, columns)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        print(json.dumps({"error": str(error).partition("\n")[0][:300]}))
        return
    names = [f"{field.name} ({field.type})"[:CELL] for field in list(schema)[:columns]]
    cells = [[_display_value(value) for value in row] for row in _rows(batch, rows, columns)]
    print(json.dumps({"total": total, "columns": len(schema), "rows": [names, *cells]}))


def _parquet(file: Any, rows: int, columns: int) -> tuple[int | None, Any, Any]:
    from pyarrow import parquet

    found = parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 18)
    names = [field.name for field in list(found.schema_arrow)[:columns]]
    batches = found.iter_batches(batch_size=rows, columns=names, use_threads=False)
    return found.metadata.num_rows, found.schema_arrow, next(batches, None)


def _arrow(file: Any, rows: int, columns: int) -> tuple[int | None, Any, Any]:
    from pyarrow import ipc

    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        found = ipc.open_file(file)
        if not found.num_record_batches:
            return 0, found.schema, None
        batch = found.get_batch(0)
        return batch.num_rows if found.num_record_batches == 1 else None, found.schema, batch
    stream = ipc.open_stream(file)
    return None, stream.schema, next(iter(stream), None)


def _rows(batch: Any, rows: int, columns: int) -> list[tuple[Any, ...]]:
    if batch is None:
        return []
    some = batch.slice(0, rows)
    return list(zip(*(_values(some.column(n)) for n in range(min(columns, some.num_columns))), strict=True))


def _values(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, TypeError):  # for example dates that Python cannot represent
        return [str(value) for value in column]


def _display_value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, dict):
        value = ", ".join(f"{name}: {_display_value(part)}" for name, part in value.items())
    elif isinstance(value, list):
        inner = ", ".join(_display_value(part) for part in value[:20])
        value = f"[{inner}{', …' if len(value) > 20 else ''}]"
    text = str(value)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
