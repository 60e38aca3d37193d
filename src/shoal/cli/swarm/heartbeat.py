"""Heartbeats of a peer: report to the server that it is alive, and learn whether it has to stop.

The thread writes `verdict` and `instructions` before it sends SIGTERM to its own process; the main thread reads them after the
script has ended and `__exit__` has joined the thread, so no lock is needed.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Literal

from shoal.core.errors import ShoalError
from shoal.core.swarm_views import PeerState, SwarmState

if TYPE_CHECKING:
    from shoal.client.swarm_peers import PeerLink
    from shoal.core.swarm_views import PeerInstructions

logger = logging.getLogger(__name__)
BEAT_S = 5.0
Verdict = Literal["kicked", "stopped", "resumed"]


class Beats(threading.Thread):
    """Context manager that sends heartbeats while a script runs. If the server does not answer, training continues."""

    def __init__(self, link: PeerLink, instructions: PeerInstructions, state: PeerState):
        super().__init__(name="beats", daemon=True)
        self._link, self.instructions, self._state = link, instructions, state
        self.verdict: Verdict | None = None
        """Reason why the script had to end; None while it may run."""
        self._over = threading.Event()

    def __enter__(self) -> Beats:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._over.set()
        self.join()
        # Before a script runs, our own SIGTERM raises KeyboardInterrupt here; the verdict says what to do.
        return kind is KeyboardInterrupt and self.verdict is not None

    def run(self) -> None:
        while not self._over.wait(BEAT_S):
            found = self.beat()
            if self._over.is_set() or not self._heed(found):
                continue
            # Same as Ctrl-C: the script gets time to leave the swarm cleanly, then all its processes are ended.
            os.kill(os.getpid(), signal.SIGTERM)
            return

    def send_last(self) -> None:
        """Send one more heartbeat after the script has ended: other peers may have stopped it before the server told us."""
        if self.verdict is None:
            self._heed(self.beat())

    def _heed(self, found: PeerInstructions | None) -> bool:
        """Store the server's answer; return True if the script must end."""
        verdict = None if found is None else judge(self.instructions.run_id, found)
        if found is None or verdict is None:
            return False
        self.instructions = found
        if verdict == "resumed" and self._state is PeerState.JOINING:
            return False  # no script runs yet: it will start with the new instructions
        self.verdict = verdict
        return True

    def beat(self) -> PeerInstructions | None:
        try:
            return self._link.beat(self._state)
        except ShoalError as error:
            logger.debug("beat: %s", error)
            return None


def judge(run_id: str, instructions: PeerInstructions) -> Verdict | None:
    """Return the reason why the script must end, or None. Pure."""
    if instructions.kicked:
        return "kicked"
    if instructions.status is SwarmState.STOPPED:
        return "stopped"
    return "resumed" if instructions.run_id != run_id else None
