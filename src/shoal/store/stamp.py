"""By what a file is known to be as it was."""

from __future__ import annotations

import os
from typing import NamedTuple


class Stamp(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    dev: int
    ino: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)

    def is_as_written(self, before: Stamp) -> bool:
        """Nothing was written since; it may have been renamed, linked, or made another's."""
        return self[:2] == before[:2] and self[3:] == before[3:]
