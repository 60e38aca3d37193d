"""What a fire drill does to a node: its workers ask for it in a record of their spool, and the agent does it to itself.

No other job notices. A server that is down is a server this agent does not talk to; only a sign of life passes now and then,
because a true outage is not held against a node either.
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
    def __init__(self, outage: Outage, is_shipped: Callable[[], bool], say: Callable[[str], None]):
        """`is_shipped`: whether the server has all there is."""
        self._outage, self._is_shipped, self._say = outage, is_shipped, say

    def obey(self, order: dict[str, Any]) -> None:
        what = order.get("do")
        if what == "cut":
            try:
                number, seconds = int(order["fault"]), min(MOST_AWAY_S, float(order["seconds"]))
            except (KeyError, TypeError, ValueError):
                return  # any script can write a record
            self._outage.begin(seconds)
            threading.Thread(target=self._await_end, args=(number, seconds), name="drill", daemon=True).start()
        elif what in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[what])

    def _await_end(self, number: int, seconds: float) -> None:
        self._tell("cut", number)
        time.sleep(seconds)
        self._tell("back", number)
        while not self._is_shipped():
            time.sleep(_POLL_S)
        self._tell("caught_up", number)

    def _tell(self, event: str, number: int) -> None:
        line = json.dumps({"event": event, "fault": number, "t": round(time.time(), 3)})
        self._say(f"{MARK}{line}")
