"""Limits of a job as seen by its agent: watches the disk space it uses, and says in words which limit ended it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from shoal.core.sizes import describe_size

POLL_S = 2.0


class DiskWatch:
    """Compares the space that folders use with a limit. Quotas of file systems would be exact, but few machines have them."""

    def __init__(self, folders: Iterable[Path], limit: int, exceeded: Callable[[str], None]):
        """Set up; `exceeded` is called once, with the reason in words."""
        self._folders, self._limit, self._exceeded = list(folders), limit, exceeded
        self._said = False

    def poll(self) -> None:
        """Measure, and report if the limit is exceeded."""
        used = sum(map(disk_use, self._folders))
        if used > self._limit and not self._said:
            self._said = True
            self._exceeded(over("disk space", used, self._limit))


def disk_use(folder: Path) -> int:
    """Return the bytes of the blocks that a tree occupies; what disappears meanwhile counts as nothing."""
    used, ahead = 0, [str(folder)]
    while ahead:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    else:
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return used


def over(what: str, used: int, limit: int) -> str:
    """Return the reason for an end by a limit: 'out of memory: used 16.2 GB of 16 GB'."""
    return f"out of {what}: used {describe_size(max(used, limit))} of {describe_size(limit)}"
