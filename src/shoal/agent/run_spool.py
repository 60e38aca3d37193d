"""What the SDK of each rank writes to its spool file, followed as it grows and passed on line by line.

How far each file was read is kept beside them, so that a salvage goes on where a dead agent stopped. Lines it may pass on
twice carry their number, by which the server knows them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
_READ = 1 << 20
_MAX_LINE = 4 << 20
_BUSY_S = 0.2
"""At most this long at a stretch: beats and logs come first."""
_NAME = re.compile(r"rank-(\d{1,9})\.jsonl")
_KIND = re.compile(rb'"k"\s*:\s*"(\w)"')


class Listener(Protocol):
    """What the follower does with what it finds."""

    def ship(self, lines: list[bytes]) -> None: ...

    def heard(self, rank: int, line: int, record: dict[str, Any]) -> bool:
        """A record that is not just a step's numbers, and the last of those; True if it is to be shipped too."""


class RunSpool:
    def __init__(self, folder: Path, notes: Path, listener: Listener, redact: Callable[[bytes], bytes] = bytes):
        self._folder, self._notes, self._listener, self._redact = folder, notes, listener, redact
        self._lock = threading.Lock()
        self._read_to: dict[str, list[int]] = {}
        """File → offset and number of lines read."""
        with suppress(OSError, ValueError):
            self._read_to = {k: [int(v[0]), int(v[1])] for k, v in json.loads(notes.read_text()).items()}

    def look(self, for_s: float = _BUSY_S) -> bool:
        """Pass on what is new, for so long at most; True if all of it was."""
        deadline = time.monotonic() + for_s
        with self._lock:
            while True:
                moved = [self._advance(name, rank) for name, rank in self._files()]
                if any(moved):
                    self._remember()
                else:
                    return True
                if time.monotonic() > deadline:
                    return False

    def drain(self) -> None:
        """All there is; called when nobody writes any more."""
        while not self.look(for_s=60.0):
            pass

    def _files(self) -> list[tuple[str, int]]:
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208
        except FileNotFoundError:
            return []
        return [(name, int(found[1])) for name in names if (found := _NAME.fullmatch(name))]

    def _advance(self, name: str, rank: int) -> bool:
        """One piece of one file; False if it has no whole new line."""
        offset, number = self._read_to.get(name, (0, 0))
        data = self._piece(self._folder / name, offset)
        if not data:
            return False
        lines = self._redact(data[:-1]).split(b"\n")
        self._pass_on(lines, rank, number)
        self._read_to[name] = [offset + len(data), number + len(lines)]
        return True

    def _piece(self, path: Path, offset: int) -> bytes:
        """Whole lines from `offset` on; a line too long to be one of ours is given as an empty one."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        with os.fdopen(fd, "rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(_READ) or b""
            whole = data.rfind(b"\n") + 1
            while not whole and len(data) >= _READ:
                more = file.read(_READ) or b""
                if not more:
                    break
                end = more.find(b"\n") + 1
                data, whole = data + (more[:end] if end else more), len(data) + end if end else 0
            return data[:whole]

    def _pass_on(self, lines: list[bytes], rank: int, number: int) -> None:
        out, last = [], -1
        for index, line in enumerate(lines):
            if not (line.startswith(b"{") and line.endswith(b"}")) or len(line) > _MAX_LINE:
                continue  # torn by a kill, or not ours
            kind = _KIND.search(line)
            if kind is not None and kind[1] == b"s":
                last = index
            elif not self._hear(line, rank, number + index):
                continue
            out.append(b'%b,"rank":%d,"q":%d}' % (line[:-1], rank, number + index))
        if last >= 0:
            self._hear(lines[last], rank, number + last)
        self._listener.ship(out)

    def _hear(self, line: bytes, rank: int, number: int) -> bool:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(record, dict) and self._listener.heard(rank, number, record)

    def _remember(self) -> None:
        aside = self._notes.with_suffix(".tmp")
        try:
            aside.write_text(json.dumps(self._read_to))
            aside.rename(self._notes)
        except OSError as error:
            logger.warning("cannot note how far the spool was read: %s", error)
