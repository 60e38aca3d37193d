"""The files of a source as they would travel, and what stands beside them on the disk."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

MAX_FILE_BYTES = 1 << 20
"""Longer files are not written by hand."""


class Source:
    """`paths` are relative to the root and '/'-separated: what the job gets, and nothing else."""

    def __init__(self, root: Path, paths: Iterable[str]):
        self.root = root
        self.paths = frozenset(paths)
        self.folders = frozenset(above for path in self.paths for above in _above(path))

    def read(self, path: str) -> str | None:
        """A text file of the source; None if it is none, or too long to be code."""
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
        """Whether the job finds a file or folder of that name."""
        path = posixpath.normpath(path)
        return path in self.paths or path in self.folders or path == "."

    def leaves_out(self, path: str) -> bool:
        """It is on the disk here, but does not travel."""
        return not self.holds(path) and (self.root / path).exists()


def _above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
