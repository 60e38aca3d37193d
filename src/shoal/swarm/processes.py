"""hivemind's DHT process, tied to ours: a peer killed with SIGKILL must not leave daemons that answer in its name."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import hivemind
from hivemind.p2p import P2P

from shoal.swarm.peer import own_subprocesses, tie_to_parent

_LONGEST = 107 - len("/hivemind-p2pclient-01234567890.sock")
"""Maximum bytes of the temporary folder's path: the kernel limits the path of a Unix socket to 107."""


class OwnedDHT(hivemind.DHT):  # type: ignore[misc]
    """hivemind.DHT whose processes end with ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) <= _LONGEST:  # otherwise /tmp, as hivemind has it
            P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/hivemind-"
        super().__init__(*args, **options)

    def run(self) -> None:
        tie_to_parent(self._parent_pid)
        own_subprocesses()
        super().run()
