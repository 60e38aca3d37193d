"""Differences between the systems on which the client runs: file locks, and flags of `os.open` that Windows does not have.

Servers and agents need Linux and import `fcntl` themselves; client, SDK, store and command line use this module.
"""

from __future__ import annotations

import os
from typing import Any

CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
BINARY: int = getattr(os, "O_BINARY", 0)

try:
    import fcntl as _fcntl
except ImportError:  # Windows
    LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN = 1, 2, 4, 8
    fcntl: Any = None
else:
    LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN = _fcntl.LOCK_SH, _fcntl.LOCK_EX, _fcntl.LOCK_NB, _fcntl.LOCK_UN
    fcntl = _fcntl
"""The module, or None on Windows."""


def flock(fd: Any, how: int) -> None:
    """Lock a file as `fcntl.flock` does; raise BlockingIOError if LOCK_NB is given and it is held.

    On Windows a shared lock is exclusive too: processes wait for each other more often, and never fail because of it.
    """
    if fcntl is not None:
        fcntl.flock(fd, how)
        return
    import msvcrt

    windows: Any = msvcrt
    number = fd if isinstance(fd, int) else fd.fileno()
    mode = windows.LK_UNLCK if how & LOCK_UN else windows.LK_NBLCK if how & LOCK_NB else windows.LK_LOCK
    os.lseek(number, 0, os.SEEK_SET)
    try:
        windows.locking(number, mode, 1)
    except OSError as error:
        raise BlockingIOError(error.errno, "the file is locked") from error


def user_id() -> int:
    """Return the id of the user of this process; on Windows the owner that `os.stat` shows for every file, 0."""
    return os.getuid() if hasattr(os, "getuid") else 0
