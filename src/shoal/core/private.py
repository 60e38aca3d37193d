"""Files and folders that only their owner can read: keys, tokens, launch files, and the data directory."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from shoal.core import system
from shoal.core.durable import flush, sync


def close_folder(folder: Path) -> None:
    """Remove all other users' permissions from a folder of ours, even if an older version created it.

    If the setgid bit is set, the group keeps its access: that is how a group shares a folder on purpose. Folders of other
    users, folders that everyone may write to (/tmp) and folders at the top of the file system (/srv) are left unchanged.
    """
    with suppress(OSError):
        real = folder.resolve(strict=True)
        found = real.stat()
        mode = stat.S_IMODE(found.st_mode)
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != system.user_id()
            or mode & stat.S_ISVTX
            or len(real.parts) < 3
        ):
            return
        closed = mode & (0o7770 if mode & stat.S_ISGID else 0o7700)
        if closed != mode:
            real.chmod(closed)


def write_private(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a file with mode 0600 atomically. `durable`: also wait until it is on the disk and survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with suppress(FileNotFoundError):
        aside.unlink()
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            if durable:
                flush(file.fileno())
        aside.replace(path)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()
    if durable:
        sync(path.parent)
