"""Reserved disk space, so that jobs can be stopped, finished and deleted on a full disk.

The reserve is a file of some megabytes beside the database. When an essential write finds the disk full, the file is removed
and its space is allocated to the database's write-ahead log at once, beyond the log's current end. Another process could use
the space between these two calls, but not after them. From then on only essential writes are accepted, until there is enough
space for the file again.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_KEEP_SIZE = 1
_SLACK = 256 << 10
"""Bytes left for other small files: the log's index, a port, the server's own record."""
_MARGIN = 1 << 20
_CHECK_EVERY_S = 1.0


class Reserve:
    """File that reserves disk space. Once the server runs, only the database's writer thread changes it."""

    def __init__(self, path: Path, size: int):
        self._path, self._size = path, size
        self._checked_at = float("-inf")
        self.released_at: float | None = None
        """Monotonic time since which the space has been released; None while it is held, or if no reserve is configured."""

    @property
    def is_held(self) -> bool:
        return self.released_at is None

    @property
    def is_full(self) -> bool:
        """True if the disk is full, even if the database can still write within its own files."""
        try:
            return not self.is_held or free_bytes(self._path.parent) < _SLACK
        except OSError:
            return True

    def open(self) -> None:
        """Create the file at the server's start; on a full disk release the space, so that the server can start at all."""
        if self._size <= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return
        if self._path.exists() and free_bytes(self._path.parent) < _MARGIN:
            self.release(None)
        elif not self._make():
            self.released_at = time.monotonic()

    def hold(self) -> bool:
        """Create the file again if there is enough space (checked at most once a second); return whether the space is held."""
        now = time.monotonic()
        if self.is_held or now - self._checked_at < _CHECK_EVERY_S:
            return self.is_held
        self._checked_at = now
        if self._make():
            logger.info("the disk has free space again")
            self.released_at = None
        return self.is_held

    def release(self, into: Path | None) -> bool:
        """Release the space and allocate it to the file `into`; return False if there was none to release."""
        if not self.is_held or self._size <= 0:
            return False
        self.released_at = time.monotonic()
        try:
            self._path.unlink()
        except OSError as error:
            logger.error("the disk reserve cannot be released: %s", error)
            return False
        logger.error("the disk is full: from now on only writes that stop, end or delete something are accepted")
        if into is not None:
            _extend(into, self._size - _SLACK)
        return True

    def _make(self) -> bool:
        if self._path.exists() and self._path.stat().st_size == self._size:
            return True
        try:
            if free_bytes(self._path.parent) < self._size + _MARGIN:
                return False
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._size)
            finally:
                os.close(fd)
            return True
        except OSError as error:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            logger.warning("no disk space can be reserved here: %s", error)
            self._size = 0
            return True


def free_bytes(folder: Path) -> int:
    """Return how many bytes this process may still write there; file systems reserve some for root."""
    found = os.statvfs(folder)
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def _extend(path: Path, size: int) -> None:
    """Allocate blocks to a file beyond its end, as many as are free; its length does not change."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        start = os.fstat(fd).st_size
        while size >= 4096 and libc.fallocate(fd, _KEEP_SIZE, start, size) != 0:
            if ctypes.get_errno() not in (errno.ENOSPC, errno.EDQUOT):
                return
            size //= 2
    finally:
        os.close(fd)
