"""Partially downloaded file: the bytes marked as safe survive a kill or a power cut, so the download can continue from them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from shoal.core.durable import flush
from shoal.core.errors import StorageFull
from shoal.store.files import disk_errors, write_at
from shoal.store.ignore import human_size

_KEEP_EVERY = 32 << 20
_SPARE = 256 << 20
"""Bytes left free on the disk for the database and running jobs."""


class PartFile:
    """File at `path` that grows. `path.json` records how many of its bytes are safe, and the remote file's version."""

    def __init__(self, path: Path):
        self.path, self._note = path, path.with_name(path.name + ".json")
        self.version: str | None = None
        """Strong ETag that must be unchanged to continue the download; None: start over after a break."""
        self.total: int | None = None
        self.facts: dict[str, str] = {}
        self.offset = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._load()
        self._kept = self.offset

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.keep()
        except StorageFull:
            pass  # the last note on disk is still true
        finally:
            os.close(self._fd)

    @property
    def is_complete(self) -> bool:
        return self.total is not None and self.offset == self.total

    def start(self, *, version: str | None, total: int | None, facts: dict[str, str] | None = None) -> None:
        """Start over from the first byte; discards what was downloaded."""
        with disk_errors(self.path):
            self._note.unlink(missing_ok=True)
            os.ftruncate(self._fd, 0)
        self.version, self.total, self.facts = version, total, facts or {}
        self.offset = self._kept = 0
        os.lseek(self._fd, 0, os.SEEK_SET)
        check_room(self.path, total or 0)

    def write(self, block: bytes) -> None:
        with disk_errors(self.path):
            write_at(self._fd, [block], self.offset)
        self.offset += len(block)
        if self.offset - self._kept >= _KEEP_EVERY:
            check_room(self.path, (self.total or self.offset) - self.offset)
            self.keep()

    def finish(self) -> None:
        """Mark the file as complete."""
        self.total = self.offset
        self.keep()

    def keep(self) -> None:
        """Make the downloaded bytes durable.

        The bytes are synced before the note, which so never claims more than is on disk.
        """
        if self.version is None and not self.is_complete:
            return  # the download could not continue from it
        with disk_errors(self.path):
            flush(self._fd)
            aside = self._note.with_name(self._note.name + ".tmp")
            aside.write_text(
                json.dumps({"version": self.version, "total": self.total, "offset": self.offset, "facts": self.facts})
            )
            aside.replace(self._note)
        self._kept = self.offset

    def _load(self) -> None:
        size = os.fstat(self._fd).st_size
        try:
            note = json.loads(self._note.read_text())
            if size >= note["offset"]:
                self.version, self.total, self.facts = note["version"], note["total"], note["facts"]
                self.offset = note["offset"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        os.ftruncate(self._fd, self.offset)
        os.lseek(self._fd, self.offset, os.SEEK_SET)


def check_room(path: Path, size: int) -> None:
    """Raise StorageFull if `size` more bytes would fill the disk."""
    free = shutil.disk_usage(path.parent).free
    if free < size + _SPARE:
        raise StorageFull(f"The server's disk has only {human_size(free)} free; {human_size(size)} more are needed.")
