"""Formats with a record per row: CSV (standard library), Parquet and Arrow (Hugging Face's save_to_disk; pyarrow)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from shoal.core.errors import MissingExtra
from shoal.data.formats.base import Block, Format, opened, whole_files
from shoal.data.pool import pool
from shoal.data.source import File, Source

_ROWS = 1024
_CELL = 1 << 28
"""Maximum size of a cell. The limit of the csv module (128 KiB by default) is global, so it is only ever raised."""


class Csv(Format):
    """CSV format: each row is a dict of str, by the names in the first row.

    A file is one block, because a quoted cell may contain line breaks.
    """

    def cut(self, source: Source, files: list[File]) -> list[Block]:
        return whole_files(files)

    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        csv.field_size_limit(max(csv.field_size_limit(), _CELL))
        separator = "\t" if ".tsv" in block.path.lower() else ","
        with opened(source, block.path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            rows = csv.reader(text, delimiter=separator)
            try:
                names = next(rows, [])
                yield from ((None, (names, row)) for row in rows if row)
            except csv.Error as error:
                raise ValueError(str(error)) from error

    def decode(self, source: Source, raw: Any) -> Any:
        names, row = raw
        if len(names) != len(row):
            raise ValueError(f"has {len(row)} cells under {len(names)} names")
        return dict(zip(names, row, strict=True))


class _Arrow(Format):
    def __init__(self) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtra(
                "Parquet and Arrow files need pyarrow, which is not installed.", hint="pip install pyarrow"
            ) from error
        self._error = pyarrow.ArrowInvalid

    def decode(self, source: Source, raw: Any) -> Any:
        batch, row = raw
        return {name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}

    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        try:
            for batch in self._batches(source, block):
                yield from ((None, (batch, row)) for row in range(batch.num_rows))
        except self._error as error:
            raise ValueError(str(error)) from error

    def _batches(self, source: Source, block: Block) -> Iterator[Any]:
        raise NotImplementedError


class Parquet(_Arrow):
    """Parquet format. Blocks are row groups; they and their numbers of rows are read from the footers."""

    def cut(self, source: Source, files: list[File]) -> list[Block]:
        footers = [(f, pool.submit(self._row_groups, source, f)) for f in files if f.size]
        return [Block(f.path, n, n + 1, rows) for f, footer in footers for n, rows in enumerate(footer.result())]

    def _row_groups(self, source: Source, file: File) -> list[int]:
        from pyarrow import parquet

        with source.open(file.path) as opened_file:
            try:
                found = parquet.ParquetFile(opened_file).metadata
            except self._error as error:
                raise ValueError(f"{file.path}: {error}") from error
            return [found.row_group(n).num_rows for n in range(found.num_row_groups)]

    def _batches(self, source: Source, block: Block) -> Iterator[Any]:
        from pyarrow import parquet

        with source.open(block.path) as file:
            # Without threads: this runs in several forked DataLoader workers per machine.
            opened_file = parquet.ParquetFile(file, pre_buffer=True)
            yield from opened_file.iter_batches(_ROWS, row_groups=[block.start], use_threads=False)


class Arrow(_Arrow):
    """Arrow IPC format, as a file or as a stream."""

    def cut(self, source: Source, files: list[File]) -> list[Block]:
        return whole_files(files)

    def _batches(self, source: Source, block: Block) -> Iterator[Any]:
        from pyarrow import ipc

        with source.open(block.path) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            if is_file:
                reader = ipc.open_file(file)
                yield from (reader.get_batch(n) for n in range(reader.num_record_batches))
            else:
                yield from ipc.open_stream(file)
