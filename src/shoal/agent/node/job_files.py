"""Files of an agent in folders that its job can write to, where any name may be a link that the job has placed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from shoal.core.errors import ShoalError


def write_for_job(path: Path, text: str, *, append: bool = False) -> None:
    """Write a file that the job reads; raise OSError if its name is a link or something else than a plain file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags | (os.O_APPEND if append else 0), 0o644)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.EINVAL, f"{path.name} is not a plain file")
        if not append:
            os.ftruncate(fd, 0)
        file.write(text)


def open_from_job(path: Path) -> BinaryIO:
    """Open a file that the job wrote, as `shoal.store.hasher.open_file` does; raise OSError if that is refused."""
    from shoal.store.hasher import open_file

    try:
        return os.fdopen(open_file(path), "rb")
    except ShoalError as error:
        raise OSError(errno.ENOENT, error.message) from error
