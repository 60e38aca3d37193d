"""Reserves a user id for each sandbox of this machine while it exists."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shoal.agent.node.workdir import NotReady

_RUN = Path("/run/shoal")
STAGE = _RUN / "stage"
"""Folder where paths that only root can reach are mounted for such a user, in a private mount namespace."""
_UIDS = range(20_000, 30_000)


def reserve_uid() -> tuple[int, int]:
    """Return a user id that no other sandbox uses, and the descriptor of the lock on it, which ends with this process."""
    folder = _RUN / "users"
    _RUN.mkdir(exist_ok=True, mode=0o755)
    folder.mkdir(exist_ok=True, mode=0o700)
    STAGE.mkdir(exist_ok=True, mode=0o755)
    for uid in _UIDS:
        fd = os.open(folder / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return uid, fd
        except BlockingIOError:
            os.close(fd)
    raise NotReady("all user ids for sandboxes are in use on this machine")
