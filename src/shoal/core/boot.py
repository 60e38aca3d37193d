"""Identify the present boot of the machine, so that a pid file from before a reboot is recognised as stale."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def boot_id() -> str:
    """Return the kernel's boot id, or the boot time where the system has no boot id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"boot-{int(psutil.boot_time())}"
