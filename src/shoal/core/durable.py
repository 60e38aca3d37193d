"""Durable writes: data must survive a power cut before the server confirms it.

After a failed fsync the kernel may forget what it could not write and report success the next time. Nothing that this process
wrote can then be relied on, so a server ends itself: it registers for such failures with `watch_flushes`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.core import system

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def sync(path: Path | str) -> None:
    """Write a file's bytes, or a folder's entries, to the disk. They are durable when this returns."""
    fd = os.open(path, os.O_RDONLY | system.CLOEXEC)
    try:
        flush(fd)
    finally:
        os.close(fd)


def flush(fd: int) -> None:
    """Write an open file's bytes to the disk. If the disk fails, tell the watcher of this process, then raise the OSError."""
    try:
        os.fsync(fd)
    except OSError as error:
        if _watcher is not None and error.errno not in _HARMLESS and os.fstat(fd).st_dev == _watcher[0]:
            _watcher[1](f"fsync failed: {error.strerror}")
        raise


def watch_flushes(folder: Path, watcher: Callable[[str], None]) -> None:
    """Call `watcher` with the reason, in the failing thread, whenever this process cannot flush a file on the disk of `folder`.

    Failures of other disks, such as that of the backups, are left to their callers.
    """
    global _watcher
    _watcher = (folder.stat().st_dev, watcher)


_watcher: tuple[int, Callable[[str], None]] | None = None
_HARMLESS = frozenset({errno.EBADF, errno.EINTR, errno.EINVAL, errno.EROFS, errno.ENOSPC, errno.EDQUOT})
"""Errors that say nothing about the disk's reliability: what was to be flushed is refused or written again elsewhere."""


def replace_folder(new: Path, folder: Path) -> None:
    """Put a finished, synced folder in the place of another, which is deleted if it exists. Durable when this returns.

    Readers find the old or the new folder, also after a crash at any moment. Only on a file system that cannot exchange two
    names is there an instant without a folder of this name; the old one is then beside it, as `.<name>.old`.
    """
    import shutil

    if not folder.exists():
        new.rename(folder)
    elif _exchange(new, folder):
        shutil.rmtree(new, ignore_errors=True)
    else:
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    sync(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; return False if the system cannot."""
    import ctypes  # 2 ms, for a rare case

    with suppress(OSError, AttributeError):
        rename = ctypes.CDLL(None, use_errno=True).renameat2
        return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
    return False
