"""Files of a source that would be uploaded, and the folder on the disk that they come from."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file that is read; longer files are generated, not written by people."""


class Source:
    """Files that a job gets. `paths` are relative to the root and '/'-separated."""

    def __init__(self, root: Path, paths: Iterable[str]):
        self.root = root
        self.paths = frozenset(paths)
        self.folders = frozenset(above for path in self.paths for above in _above(path))

    def read(self, path: str) -> str | None:
        """Return the text of a file of the source; None if it is not text, not in the source, or too long."""
        if path not in self.paths:
            return None
        file = self.root / path
        try:
            if file.stat().st_size > MAX_FILE_BYTES:
                return None
            return file.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None

    def holds(self, path: str) -> bool:
        """Check whether the source contains a file or folder of that path."""
        path = posixpath.normpath(path)
        return path in self.paths or path in self.folders or path == "."

    def excludes(self, path: str) -> bool:
        """Check whether a file exists on the disk but is excluded from the source."""
        return not self.holds(path) and (self.root / path).exists()


def _above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
