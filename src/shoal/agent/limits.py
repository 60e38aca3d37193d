"""What a node's processes may use of the system's tables."""

from __future__ import annotations

import resource


def set_limits() -> None:
    """For the agent and its workers: two pipes a worker may need more files than the usual 1024; core dumps would fill the disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
