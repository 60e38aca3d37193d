"""Faults of a fire drill: the workers request a fault in a record of their spool, and the agent inflicts it on itself.

Other jobs are not affected. A server outage is simulated by this agent not talking to the server; an occasional heartbeat still
passes, because in a real outage the server would not count the node as lost either.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from shoal.agent.link import Outage
from shoal.core.drills import MARK, MOST_AWAY_S

_POLL_S = 0.05
_SIGNALS = {"sigterm": signal.SIGTERM, "kill": signal.SIGKILL}


class Drill:
    """Inflicts the faults that a fire drill requests on this agent."""

    def __init__(self, outage: Outage, is_shipped: Callable[[], bool], say: Callable[[str], None]):
        """Set up the drill. `is_shipped` returns whether the server has all records of this node."""
        self._outage, self._is_shipped, self._say = outage, is_shipped, say

    def obey(self, command: dict[str, Any]) -> None:
        """Inflict the fault that a record requests; malformed requests are ignored."""
        what = command.get("do")
        if what == "cut":
            try:
                number, seconds = int(command["fault"]), min(MOST_AWAY_S, float(command["seconds"]))
            except (KeyError, TypeError, ValueError):
                return  # any script can write a record
            self._outage.begin(seconds)
            threading.Thread(target=self._await_end, args=(number, seconds), name="drill", daemon=True).start()
        elif what in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[what])

    def _await_end(self, number: int, seconds: float) -> None:
        self._report("cut", number)
        time.sleep(seconds)
        self._report("back", number)
        while not self._is_shipped():
            time.sleep(_POLL_S)
        self._report("caught_up", number)

    def _report(self, event: str, number: int) -> None:
        line = json.dumps({"event": event, "fault": number, "t": round(time.time(), 3)})
        self._say(f"{MARK}{line}")
