"""What stands between strangers and accounts, in memory: password hashing, counted tries, when keys were last used.

One `Guards` per running server; a restart forgets tries, and nothing else of value.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from shoal.core.errors import TooManyTries, Unreachable
from shoal.core.schema import utcnow

_MAX_KEPT = 100_000


class Passwords:
    """argon2id, at most two at a time: each costs 19 MiB and tens of milliseconds of a core."""

    def __init__(self, *, memory_kib: int = 19 * 1024, time_cost: int = 2, at_once: int = 2, waiting: int = 8):
        self._hasher = PasswordHasher(time_cost=time_cost, memory_cost=memory_kib, parallelism=1)
        self._busy = threading.BoundedSemaphore(at_once)
        self._room = threading.BoundedSemaphore(at_once + waiting)
        self._decoy = self._hasher.hash("nobody's password")

    def hash(self, password: str) -> str:
        with self._turn():
            return self._hasher.hash(password)

    def verify(self, hashed: str | None, password: str) -> bool:
        """Takes as long for an account that does not exist (None) as for one that does."""
        with self._turn():
            try:
                return self._hasher.verify(hashed or self._decoy, password) and hashed is not None
            except (Argon2Error, InvalidHashError):
                return False

    def is_outdated(self, hashed: str) -> bool:
        return self._hasher.check_needs_rehash(hashed)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # Waiting holds a request thread: beyond a few, turn people away rather than starve every other route.
        if not self._room.acquire(blocking=False):
            raise Unreachable("Too many people are signing in at once; try again shortly.")
        try:
            with self._busy:
                yield
        finally:
            self._room.release()


class Tries:
    """Failures in the last minute, by e-mail and by address. A try counts as failed until it is forgiven."""

    def __init__(self, *, per_email: int = 5, per_address: int = 20, window_s: float = 60.0,
                 clock: Callable[[], float] = time.monotonic):  # fmt: skip
        self._limits = {"email": per_email, "address": per_address}
        self._window_s, self._clock = window_s, clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], deque[float]] = {}

    def begin(self, *, email: str, address: str) -> None:
        """Count a try, or raise TooManyTries (which itself counts for nothing)."""
        now = self._clock()
        keys = [("email", email), ("address", address)]
        with self._lock:
            if any(self._count(key, now) >= self._limits[key[0]] for key in keys):
                raise TooManyTries()
            if len(self._seen) > _MAX_KEPT:
                self._seen = {k: v for k, v in self._seen.items() if self._count(k, now)}
            for key in keys:
                self._seen.setdefault(key, deque()).append(now)

    def forgive(self, *, email: str, address: str) -> None:
        """It was them: their e-mail starts afresh, and this try is not held against the address."""
        with self._lock:
            self._seen.pop(("email", email), None)
            if seen := self._seen.get(("address", address)):
                seen.pop()

    def _count(self, key: tuple[str, str], now: float) -> int:
        seen = self._seen.get(key)
        while seen and seen[0] <= now - self._window_s:
            seen.popleft()
        return len(seen or ())


class LastUses:
    """When keys were last used, gathered here so that no request has to write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[str, datetime] = {}

    def note(self, key_id: str) -> None:
        """Costs a dictionary entry; `keys.flush_touched` makes it durable."""
        if key_id.startswith("key_"):
            with self._lock:
                self._at[key_id] = utcnow()

    def get(self, key_id: str) -> datetime | None:
        return self._at.get(key_id)

    def take(self) -> dict[str, datetime]:
        with self._lock:
            taken, self._at = self._at, {}
        return taken


@dataclass(slots=True, kw_only=True)
class Guards:
    passwords: Passwords = field(default_factory=Passwords)
    tries: Tries = field(default_factory=Tries)
    last_uses: LastUses = field(default_factory=LastUses)
    git_slots: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(4))
    """Git fetches at once: each holds a request thread for as long as the remote takes."""
