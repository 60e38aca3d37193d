"""Archive types that can be unpacked: the one list, for the command line, the console and the store."""

from __future__ import annotations

SUFFIXES = (".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tbz2", ".txz", ".tar", ".zip")
"""Endings of archive names. A longer one comes before its own ending."""
SHOWN = ".zip, .tar, .tar.gz, .tar.bz2 or .tar.xz"
"""The types for people, in help texts and errors."""


def archive_kind(name: str) -> str | None:
    """Return the suffix that makes this the name of an archive, or None."""
    lower = name.lower()
    return next((name[-len(suffix) :] for suffix in SUFFIXES if lower.endswith(suffix)), None)
