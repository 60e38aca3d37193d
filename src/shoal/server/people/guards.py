"""Protection of accounts, in memory: password hashing, counting of failed tries, last use of API keys.

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

from shoal.core.addresses import network_of
from shoal.core.errors import TooManyTries, Unreachable
from shoal.core.schema import utcnow

_MAX_KEPT = 100_000


class Passwords:
    """Password hashing with argon2id, at most two at a time: each needs 19 MiB and tens of milliseconds of a core."""

    def __init__(self, *, memory_kib: int = 19 * 1024, time_cost: int = 2, at_once: int = 2, waiting: int = 8):
        self._hasher = PasswordHasher(time_cost=time_cost, memory_cost=memory_kib, parallelism=1)
        self._busy = threading.BoundedSemaphore(at_once)
        self._room = threading.BoundedSemaphore(at_once + waiting)
        self._decoy = self._hasher.hash("nobody's password")

    def hash(self, password: str) -> str:
        with self._turn():
            return self._hasher.hash(password)

    def verify(self, hashed: str | None, password: str) -> bool:
        """Check a password. Takes as long for an account that does not exist (`hashed` is None) as for one that does."""
        with self._turn():
            try:
                return self._hasher.verify(hashed or self._decoy, password) and hashed is not None
            except (Argon2Error, InvalidHashError):
                return False

    def is_outdated(self, hashed: str) -> bool:
        return self._hasher.check_needs_rehash(hashed)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # A waiting call occupies a request thread: beyond a few, refuse, so that other routes still have threads.
        if not self._room.acquire(blocking=False):
            raise Unreachable("Too many people are signing in at once; try again shortly.")
        try:
            with self._busy:
                yield
        finally:
            self._room.release()


class Tries:
    """Counter of failed tries in the last minute. A try counts as failed until it is forgiven.

    Per account and address, so that a stranger who fails on purpose locks out only themselves; per address; and per account over
    all addresses from which it has never signed in, against many machines that guess together.
    """

    def __init__(self, *, per_pair: int = 5, per_address: int = 20, per_email: int = 20, window_s: float = 60.0,
                 clock: Callable[[], float] = time.monotonic):  # fmt: skip
        self._limits = {"pair": per_pair, "address": per_address, "email": per_email}
        self._window_s, self._clock = window_s, clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, ...], deque[float]] = {}

    def begin(self, *, email: str, address: str, has_been_here: Callable[[], bool] = lambda: False) -> None:
        """Count a try, or raise TooManyTries; a refused try is not counted.

        `has_been_here` says whether the account has signed in from this address before. It is called only if the account has
        had too many tries from elsewhere.
        """
        pair, near, account = self._keys(email, address)
        if self._is_full(account) and has_been_here():
            account = pair
        now = self._clock()
        with self._lock:
            keys = dict.fromkeys((pair, near, account))
            if any(self._count(key, now) >= self._limits[key[0]] for key in keys):
                raise TooManyTries()
            if len(self._seen) > _MAX_KEPT:
                self._seen = {k: v for k, v in self._seen.items() if self._count(k, now)}
            for key in keys:
                self._seen.setdefault(key, deque()).append(now)

    def forgive(self, *, email: str, address: str) -> None:
        """Record that a try succeeded: the account's count at this address is reset, and the try no longer counts elsewhere."""
        pair, near, account = self._keys(email, address)
        with self._lock:
            self._seen.pop(pair, None)
            # A full account counts only tries from elsewhere, which this one may not be.
            for key in (near, account):
                if (seen := self._seen.get(key)) and (key is near or len(seen) < self._limits["email"]):
                    seen.pop()

    def _keys(self, email: str, address: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        near = network_of(address)
        return ("pair", email, near), ("address", near), ("email", email)

    def _is_full(self, key: tuple[str, ...]) -> bool:
        with self._lock:
            return self._count(key, self._clock()) >= self._limits[key[0]]

    def _count(self, key: tuple[str, ...], now: float) -> int:
        seen = self._seen.get(key)
        while seen and seen[0] <= now - self._window_s:
            seen.popleft()
        return len(seen or ())


class Failures:
    """Limit of the failures that the audit log lists in a minute, so that an attack does not fill the disk."""

    def __init__(self, *, most: int = 60, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic):
        self._most, self._window_s, self._clock = most, window_s, clock
        self._lock = threading.Lock()
        self._listed: deque[float] = deque()
        self._left_out = 0

    def admit(self) -> int | None:
        """Return None if this failure is to be left out, else the number of those left out since the last that was listed."""
        now = self._clock()
        with self._lock:
            while self._listed and self._listed[0] <= now - self._window_s:
                self._listed.popleft()
            if len(self._listed) >= self._most:
                self._left_out += 1
                return None
            self._listed.append(now)
            left_out, self._left_out = self._left_out, 0
            return left_out


class LastUses:
    """Times of the last use of each key, collected in memory so that requests need not write to the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[str, datetime] = {}

    def note(self, key_id: str) -> None:
        """Remember that a key was used now; `keys.flush_touched` writes it to the database."""
        if key_id.startswith("key_"):
            with self._lock:
                self._at[key_id] = utcnow()

    def get(self, key_id: str) -> datetime | None:
        return self._at.get(key_id)

    def pop_all(self) -> dict[str, datetime]:
        with self._lock:
            taken, self._at = self._at, {}
        return taken


@dataclass(slots=True, kw_only=True)
class Guards:
    """Password hashing, try counters and fetch slots that all requests of a server share."""

    passwords: Passwords = field(default_factory=Passwords)
    tries: Tries = field(default_factory=Tries)
    failures: Failures = field(default_factory=Failures)
    last_uses: LastUses = field(default_factory=LastUses)
    git_slots: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(4))
    """Slots for concurrent git fetches: each occupies a request thread for as long as the remote takes."""
