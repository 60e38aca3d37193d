"""Formats with a record per line: JSON Lines and plain text. Uncompressed files are cut anywhere.

A line belongs to the block in which it starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from shoal.data.formats.base import BLOCKS, LARGEST_BLOCK, SMALLEST_BLOCK, Block, Format, compression, opened
from shoal.data.source import PIECE, File, Source


class Lines(Format):
    """Text format: each line is a str, without its line end."""

    keeps_blank = True

    def cut(self, source: Source, files: list[File]) -> list[Block]:
        step = min(max(sum(f.size for f in files) // BLOCKS, SMALLEST_BLOCK), LARGEST_BLOCK)
        blocks = []
        for file in files:
            length = max(file.size, 1) if compression(file.path) else step
            blocks += [Block(file.path, at, min(at + length, file.size)) for at in range(0, file.size, length)]
        return blocks

    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        if compression(block.path):
            with opened(source, block.path) as file:
                pieces = iter(lambda: file.read(PIECE), b"")
                yield from ((None, line) for _, line in self._kept(split_lines(pieces)))
            return
        # Start one byte earlier, to see whether a line ends right before this block.
        back = 1 if offset is None and block.start else 0
        at = (block.start if offset is None else offset) - back
        pieces = source.pieces(block.path, at, block.end)
        yield from self._kept(split_lines(pieces, at, skip_first=bool(back), end=block.end))

    def decode(self, source: Source, raw: Any) -> Any:
        return raw.decode().removesuffix("\r")

    def warm(self, source: Source, block: Block) -> None:
        if not compression(block.path):
            source.warm(block.path, block.start - (1 if block.start else 0), block.end)

    def _kept(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        return lines if self.keeps_blank else (line for line in lines if line[1] and not line[1].isspace())


class JsonLines(Lines):
    """JSON Lines format: each line is a JSON value; blank lines are skipped."""

    keeps_blank = False

    def decode(self, source: Source, raw: Any) -> Any:
        return json.loads(raw.decode().removeprefix("\ufeff"))


def split_lines(
    pieces: Iterable[bytes], at: int = 0, *, skip_first: bool = False, end: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of lines that start before `end`. Memory use is bounded by the longest line and the pieces."""
    rest: list[bytes] = []
    reached = at
    for piece in pieces:
        reached += len(piece)
        head, newline, tail = piece.partition(b"\n")
        if not newline:
            rest.append(piece)
            if skip_first and end is not None and reached >= end:
                return
            continue
        lines = [b"".join([*rest, head]), *tail.split(b"\n")]
        rest = [lines.pop()]
        for line in lines:
            if skip_first:
                skip_first = False
            elif end is not None and at >= end:
                return
            else:
                yield at, line
            at += len(line) + 1
        if end is not None and at >= end:
            return
    last = b"".join(rest)
    if last and not skip_first and (end is None or at < end):
        yield at, last
