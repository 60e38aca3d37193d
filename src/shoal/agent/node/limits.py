"""Resource limits of a node's processes."""

from __future__ import annotations

import resource


def set_limits() -> None:
    """Raise the limits of open files and locked memory, and disable core dumps, for the agent and its workers.

    Two pipes per worker may need more than the usual 1024 files; RDMA and pinned memory need locked memory; core dumps would
    fill the disk.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, endless)
    except (OSError, ValueError):  # not allowed here: as much as is
        most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
