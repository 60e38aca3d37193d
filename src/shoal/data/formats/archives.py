"""Samples in tar files, as WebDataset writes them: adjacent files with the same name up to the first dot make one sample."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from shoal.data.formats.base import Block, Format, compression, opened, whole_files
from shoal.data.source import PIECE, File, Source


class Tar(Format):
    """Tar format. A sample is a dict with `__key__` and the bytes of each file, by the suffix after its first dot."""

    def cut(self, source: Source, files: list[File]) -> list[Block]:
        return whole_files(files)

    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        # If small reads are cheap, the contents of a file are read only when the sample is decoded.
        lazily = source.reads_anywhere and not compression(block.path)
        with opened(source, block.path) as file:
            if offset:
                file.seek(offset)
            start: int | None = None
            sample: dict[str, Any] = {}
            for member, name, content in _members(file, block.path, lazily):
                key, suffix = _split(name)
                if sample and (key != sample["__key__"] or suffix in sample):
                    yield start, sample
                    sample = {}
                if not sample:
                    start = member if lazily else None
                    sample["__key__"] = key
                sample[suffix] = content
            if sample:
                yield start, sample

    def decode(self, source: Source, raw: Any) -> Any:
        return {name: source.read(*value) if isinstance(value, tuple) else value for name, value in raw.items()}


class WholeFiles(Format):
    """Format in which each file is a record: its path and its bytes."""

    def cut(self, source: Source, files: list[File]) -> list[Block]:
        return [Block(f.path, 0, f.size, 1) for f in files]

    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        yield None, block

    def decode(self, source: Source, raw: Any) -> Any:
        return {"path": raw.path, "bytes": source.read(raw.path, 0, raw.end)}

    def warm(self, source: Source, block: Block) -> None:
        if block.end <= PIECE:
            source.warm(block.path, 0, block.end)


def _members(file: BinaryIO, path: str, lazily: bool) -> Iterator[tuple[int, str, Any]]:
    """Yield (offset, name, content) of every file; the content as bytes or, if `lazily`, as (path, start, end)."""
    try:
        with tarfile.open(fileobj=file, mode="r:" if lazily else "r|") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else it remembers every header of millions
                if not member.isfile():
                    continue
                if lazily:
                    yield member.offset, member.name, (path, member.offset_data, member.offset_data + member.size)
                else:
                    content = tar.extractfile(member)
                    yield member.offset, member.name, content.read() if content else b""
    except tarfile.TarError as error:
        raise ValueError(str(error)) from error


def _split(name: str) -> tuple[str, str]:
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, suffix = base.partition(".")
    return folder + slash + stem, suffix
