"""hivemind's processes, tied to ours: a peer killed with -9 must not leave daemons behind that answer in its name."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import hivemind
from hivemind.p2p import P2P

from shoal.swarm.peer import own_subprocesses, settle_in

_LONGEST = 107 - len("/hivemind-p2pclient-01234567890.sock")
"""The kernel takes no longer name of a socket."""


class OwnedDHT(hivemind.DHT):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) <= _LONGEST:  # otherwise /tmp, as hivemind has it
            P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/hivemind-"
        super().__init__(*args, **options)

    def run(self) -> None:
        settle_in(self._parent_pid)
        own_subprocesses()
        super().run()
