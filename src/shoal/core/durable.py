"""What is written must outlive a power cut before anybody is told of it."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path | str) -> None:
    """A file's bytes, or a folder's entries: on the disk when this returns."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
