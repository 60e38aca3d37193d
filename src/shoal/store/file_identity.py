"""Identity of a file's content by its metadata."""

from __future__ import annotations

import os
from typing import NamedTuple


class FileIdentity(NamedTuple):
    """Size, times and inode of a file. Writing to the file changes it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    dev: int
    ino: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)

    def is_as_written(self, before: FileIdentity) -> bool:
        """Check that nothing was written since `before`. A rename, a link or a new owner changes only ctime and is allowed."""
        return self[:2] == before[:2] and self[3:] == before[3:]
