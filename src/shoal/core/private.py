"""Files and folders for their owner only: keys, tokens, launches, and the data directory they are in."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from shoal.core.durable import sync


def close_folder(folder: Path) -> None:
    """Take the permissions of all others from a folder of ours, also from one that was made by an older version.

    With the setgid bit its group keeps access: that is how a group shares a folder on purpose. Folders that are not ours,
    that everybody may write to (/tmp) or that stand at the top of the file system (/srv) are left as they are.
    """
    with suppress(OSError):
        real = folder.resolve(strict=True)
        found = real.stat()
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & stat.S_ISVTX or len(real.parts) < 3:
            return
        closed = mode & (0o7770 if mode & stat.S_ISGID else 0o7700)
        if closed != mode:
            real.chmod(closed)


def write_private(path: Path, text: str, *, durable: bool = False) -> None:
    """Whole or not at all. `durable`: it also outlives a power cut, which takes a wait for the disk."""
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
                os.fsync(file.fileno())
        aside.replace(path)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()
    if durable:
        sync(path.parent)
