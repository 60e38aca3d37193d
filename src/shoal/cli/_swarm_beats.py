"""While a peer trains: tells the server that it is there, and hears whether it is to go."""

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
    from shoal.core.swarm_views import PeerOrders

logger = logging.getLogger(__name__)
BEAT_S = 5.0
Verdict = Literal["kicked", "stopped", "resumed"]


class Beats(threading.Thread):
    """A context manager around the run of a script. A server that does not answer changes nothing: peers need each other only."""

    def __init__(self, link: PeerLink, orders: PeerOrders, state: PeerState):
        super().__init__(name="beats", daemon=True)
        self._link, self.orders, self._state = link, orders, state
        self.verdict: Verdict | None = None
        """Why the script was ended."""
        self._over = threading.Event()

    def __enter__(self) -> Beats:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._over.set()
        self.join()
        # Our own signal where no script runs yet: what it means is in the verdict.
        return kind is KeyboardInterrupt and self.verdict is not None

    def run(self) -> None:
        while not self._over.wait(BEAT_S):
            found = self.ask()
            if self._over.is_set() or not self._heed(found):
                continue
            # The same way as Ctrl-C: the script may leave in good order, then all of it is ended.
            os.kill(os.getpid(), signal.SIGTERM)
            return

    def look(self) -> None:
        """Once more, after the script: its swarm may have told it to end before the server told us."""
        if self.verdict is None:
            self._heed(self.ask())

    def _heed(self, found: PeerOrders | None) -> bool:
        """Whether there is a verdict now."""
        verdict = None if found is None else judge(self.orders.run_id, found)
        if found is None or verdict is None:
            return False
        self.orders = found
        if verdict == "resumed" and self._state is PeerState.JOINING:
            return False  # nothing runs yet: it begins with the new orders
        self.verdict = verdict
        return True

    def ask(self) -> PeerOrders | None:
        try:
            return self._link.beat(self._state)
        except ShoalError as error:
            logger.debug("beat: %s", error)
            return None


def judge(run_id: str, orders: PeerOrders) -> Verdict | None:
    """Whether the script must end. Pure."""
    if orders.kicked:
        return "kicked"
    if orders.status is SwarmState.STOPPED:
        return "stopped"
    return "resumed" if orders.run_id != run_id else None
