"""SSH endpoints of running jobs: one per node that a person attached to, with the keys that may log in.

In memory. After a restart of the server an endpoint is created again with the same host key, so an agent that is already
connected can stay so.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.core.schema import utcnow
from shoal.server.leases.keys import Keyring

_LIFE = timedelta(hours=12)
"""Time for which a key can log in; sessions that are open then stay open."""


@dataclass(slots=True)
class AttachEndpoint:
    """SSH access to one node of one attempt."""

    id: str
    job: str
    private_key: str
    public_key: str
    logins: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """Login → its public key, and until when it is valid."""
    asked_at: float = -math.inf
    """Monotonic time when its agent was last asked to connect."""


class Attached:
    """All SSH endpoints of running attempts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[tuple[str, int], AttachEndpoint] = {}

    def endpoint(self, attempt_id: str, node: int, job: str, keys: Keyring) -> AttachEndpoint:
        with self._lock:
            key, name = (attempt_id, node), f"{attempt_id}.{node}"
            if key not in self._endpoints:
                self._endpoints[key] = AttachEndpoint(name, job, *keys.derived(name))
            return self._endpoints[key]

    def known(self, attempt_id: str, node: int) -> AttachEndpoint | None:
        return self._endpoints.get((attempt_id, node))

    def admit(self, endpoint: AttachEndpoint, login: str, public_key: str) -> bool:
        """Allow a key to log in; return whether this login is new."""
        with self._lock:
            is_new = login not in endpoint.logins
            endpoint.logins[login] = (public_key, utcnow() + _LIFE)
            return is_new

    def by_login(self, login: str) -> tuple[AttachEndpoint, str, datetime] | None:
        """Return the endpoint of a valid login, its public key and until when it is valid; else None."""
        with self._lock:
            for endpoint in self._endpoints.values():
                if (found := endpoint.logins.get(login)) and found[1] > utcnow():
                    return endpoint, *found
        return None

    def keep_only(self, attempts: Collection[str]) -> None:
        """Forget the endpoints of all other attempts, which have ended."""
        with self._lock:
            self._endpoints = {key: endpoint for key, endpoint in self._endpoints.items() if key[0] in attempts}
