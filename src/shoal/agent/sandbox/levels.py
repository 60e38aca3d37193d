"""Levels of sandboxes, and the memory that all sandboxes of a machine may use together.

S3  own user, namespaces, cgroups for memory, processes and CPU time, filtered system calls, only its own files and network
S2  namespaces and filtered system calls, only its own files; some of the rest is missing, and listed
S1  a lease without namespaces (Landlock blocks files outside), or a job that sees the files of the server's user
S0  no protection
"""

from __future__ import annotations

import os
from enum import StrEnum


class Level(StrEnum):
    """Strength of a sandbox; the module's docstring describes the levels."""

    S0, S1, S2, S3 = "S0", "S1", "S2", "S3"


def usable_memory() -> int:
    """Return the bytes of memory that all sandboxes may use together; the rest is for the machine itself."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10 * 9
