"""A user of its own for each sandbox of this machine, as long as it lasts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shoal.agent.node import NotReady

_RUN = Path("/run/shoal")
STAGE = _RUN / "stage"
"""Where what only root can reach is brought to such a user, in mounts nobody else sees."""
_UIDS = range(20_000, 30_000)


def take_uid() -> tuple[int, int]:
    """One that no other sandbox has now, and the descriptor of the lock on it, which ends with us."""
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
    raise NotReady("all users for sandboxes are taken on this machine")
