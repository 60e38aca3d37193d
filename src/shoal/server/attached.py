"""Ways into running jobs: one per node that somebody has attached to, with the keys of those who may come. In memory: whoever
attaches after a restart of the server gets a new one.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.core.schema import utcnow
from shoal.server.services.lease_keys import new_key

_LIFE = timedelta(hours=12)
"""For how long a key opens it; who is inside by then stays."""


@dataclass(slots=True)
class Door:
    """Into one node of one attempt."""

    id: str
    job: str
    private_key: str
    public_key: str
    logins: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """Login → the public key that opens it, and until when."""
    asked_at: float = -math.inf
    """When its agent was last told, by the monotonic clock."""


class Attached:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doors: dict[tuple[str, int], Door] = {}

    def door(self, attempt_id: str, node: int, job: str) -> Door:
        with self._lock:
            key = (attempt_id, node)
            if key not in self._doors:
                self._doors[key] = Door(f"{attempt_id}.{node}", job, *new_key())
            return self._doors[key]

    def known(self, attempt_id: str, node: int) -> Door | None:
        return self._doors.get((attempt_id, node))

    def admit(self, door: Door, login: str, public_key: str) -> bool:
        """Whether they are new here."""
        with self._lock:
            is_new = login not in door.logins
            door.logins[login] = (public_key, utcnow() + _LIFE)
            return is_new

    def by_login(self, login: str) -> tuple[Door, str, datetime] | None:
        """(door, key, until)."""
        with self._lock:
            for door in self._doors.values():
                if (found := door.logins.get(login)) and found[1] > utcnow():
                    return door, *found
        return None

    def close(self, attempt_id: str) -> None:
        """The attempt is over."""
        with self._lock:
            for key in [key for key in self._doors if key[0] == attempt_id]:
                del self._doors[key]
