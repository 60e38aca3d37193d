"""hivemind's processes, tied to ours: a peer killed with -9 must not leave daemons behind that answer in its name."""

from __future__ import annotations

import hivemind

from shoal.swarm.peer import own_subprocesses, settle_in


class OwnedDHT(hivemind.DHT):  # type: ignore[misc]
    def run(self) -> None:
        settle_in(self._parent_pid)
        own_subprocesses()
        super().run()
