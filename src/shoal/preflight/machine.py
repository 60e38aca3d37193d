"""Memory, disk and GPUs of this machine, as Linux reports them."""

from __future__ import annotations

import os
import shutil

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """Return the bytes of memory that a node may use, or 0 if unknown."""
    found = []
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("MemTotal:"):
                found.append(int(line.split()[1]) * 1024)
    for path in _LIMITS:
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123
                found.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return min(found, default=0)


def has_gpu() -> bool:
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")  # noqa: PTH110


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_disk(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
