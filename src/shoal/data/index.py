"""Number of records of each block and some of their offsets: found while reading, shared by all processes of a machine."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shoal.core import system
from shoal.data.formats import Block

logger = logging.getLogger(__name__)

MARK = 64
"""Number of records from one known offset to the next."""


class Counted(NamedTuple):
    total: int
    marks: tuple[int, ...] = ()
    """Offsets of records 0, 64, 128, …; empty if the format cannot start to read there."""


class Index:
    """Counts and offsets of the blocks.

    With a path, processes share them through a file: every line is appended by one write and has a checksum.
    """

    def __init__(self, blocks: Sequence[Block], path: Path | None = None):
        self._known = {n: Counted(block.total) for n, block in enumerate(blocks) if block.total is not None}
        self._size = len(blocks)
        self.is_certain = self.is_complete
        """True if every process knows all counts without reading, because the format contains them."""
        self._path = path
        self._read = 0
        if path is not None:
            with suppress(OSError):
                os.utime(path)  # marks it as used, so that a sweep of the cache keeps it
        self.refresh()

    def get(self, number: int) -> Counted | None:
        return self._known.get(number)

    def refresh(self) -> None:
        """Read the counts that other processes have found since."""
        if self._path is None or self.is_complete:
            return
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= self._read:
                    return
                file.seek(self._read)
                lines = file.read()
        except OSError:
            return
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            number, counted = _parse(line)
            if counted is not None and 0 <= number < self._size:
                self._known.setdefault(number, counted)

    def learn(self, number: int, counted: Counted) -> None:
        if number in self._known:
            return
        self._known[number] = counted
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.CLOEXEC, 0o600)
            try:
                os.write(fd, _line(number, counted))
            finally:
                os.close(fd)
        except OSError as error:
            logger.debug("%s cannot be written: %s", self._path, error)
            self._path = None

    @property
    def is_complete(self) -> bool:
        return len(self._known) == self._size


def _line(number: int, counted: Counted) -> bytes:
    text = " ".join(map(str, (number, counted.total, *counted.marks))).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _parse(line: bytes) -> tuple[int, Counted | None]:
    text, _, check = line.rpartition(b" ")
    if check != b"%08x" % zlib.crc32(text):
        return -1, None
    number, total, *marks = map(int, text.split())
    return number, Counted(total, tuple(marks))
