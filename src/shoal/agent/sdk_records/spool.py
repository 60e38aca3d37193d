"""Follows the spool files that the SDK of each rank writes, and passes on their lines.

The read position of each file is saved, so that recovery continues where a dead agent stopped. A line may be passed on twice
after that; it carries its line number, by which the server recognises it.
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

from shoal.core.records import Kind

logger = logging.getLogger(__name__)

POLL_EVERY_S = 0.5
_READ = 1 << 20
_MAX_LINE = 4 << 20
_BUSY_S = 0.2
"""Most seconds per poll, because heartbeats and logs have priority."""
_NAME = re.compile(r"rank-(\d{1,9})\.jsonl")
_STEP = Kind.STEP.encode()
_KIND = re.compile(rb'"k"\s*:\s*"(\w)"')


class Listener(Protocol):
    """Receiver of the lines that `RunSpool` finds."""

    def ship(self, lines: list[bytes]) -> None: ...

    def on_record(self, rank: int, line: int, record: dict[str, Any]) -> bool:
        """Handle a record; return whether to ship it too. Of step records, only the last of each piece is passed here."""


class RunSpool:
    """Follows the spool files of all ranks in a folder. Thread-safe: `_lock` allows one reader at a time."""

    def __init__(self, folder: Path, notes: Path, listener: Listener, redact: Callable[[bytes], bytes] = bytes):
        self._folder, self._notes, self._listener, self._redact = folder, notes, listener, redact
        self._lock = threading.Lock()
        self._read_to: dict[str, list[int]] = {}
        """File name → offset and number of lines read."""
        with suppress(OSError, ValueError):
            self._read_to = {k: [int(v[0]), int(v[1])] for k, v in json.loads(notes.read_text()).items()}

    def poll(self, for_s: float = _BUSY_S) -> bool:
        """Pass on new lines for at most `for_s` seconds; return whether all of them were passed on."""
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
        """Pass on everything; called when no worker writes any more."""
        while not self.poll(for_s=60.0):
            pass

    def _files(self) -> list[tuple[str, int]]:
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208
        except FileNotFoundError:
            return []
        return [(name, int(found[1])) for name in names if (found := _NAME.fullmatch(name))]

    def _advance(self, name: str, rank: int) -> bool:
        """Read one piece of one file; return False if it has no complete new line."""
        offset, number = self._read_to.get(name, (0, 0))
        data = self._piece(self._folder / name, offset)
        if not data:
            return False
        lines = self._redact(data[:-1]).split(b"\n")
        self._pass_on(lines, rank, number)
        self._read_to[name] = [offset + len(data), number + len(lines)]
        return True

    def _piece(self, path: Path, offset: int) -> bytes:
        """Return complete lines starting at `offset`; at least one, even if it is longer than _READ."""
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
                continue  # cut off by a kill, or not written by the SDK
            kind = _KIND.search(line)
            if kind is not None and kind[1] == _STEP:
                last = index
            elif not self._handle(line, rank, number + index):
                continue
            out.append(b'%b,"rank":%d,"q":%d}' % (line[:-1], rank, number + index))
        if last >= 0:
            self._handle(lines[last], rank, number + last)
        self._listener.ship(out)

    def _handle(self, line: bytes, rank: int, number: int) -> bool:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(record, dict) and self._listener.on_record(rank, number, record)

    def _remember(self) -> None:
        aside = self._notes.with_suffix(".tmp")
        try:
            aside.write_text(json.dumps(self._read_to))
            aside.rename(self._notes)
        except OSError as error:
            logger.warning("cannot save the read position of the spool: %s", error)
