"""Ways into running jobs: one per node that somebody has attached to, with the keys of those who may come. In memory: whoever
attaches after a restart of the server gets a new one, with the same key, so that an agent that has opened the way need not do it again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.core.schema import utcnow
from shoal.server.services.lease_keys import Keyring

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

    def door(self, attempt_id: str, node: int, job: str, keys: Keyring) -> Door:
        with self._lock:
            key, name = (attempt_id, node), f"{attempt_id}.{node}"
            if key not in self._doors:
                self._doors[key] = Door(name, job, *keys.derived(name))
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

    def keep_only(self, attempts: Collection[str]) -> None:
        """The others have ended."""
        with self._lock:
            self._doors = {key: door for key, door in self._doors.items() if key[0] in attempts}
