"""Beats: the thread that tells the server how the node is, short and never late, and passes on what the server wants of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.agent.link import Link
from shoal.agent.wire import BEAT_INTERVAL_S, BeatReply
from shoal.core.errors import AuthError, Fenced, NotFound, ShoalError
from shoal.core.loops import run_all

logger = logging.getLogger(__name__)

_REFUSED_S = 30.0
"""A server that does not know our token for so long has truly forgotten us; less may be a restart."""
_LONG_OUTAGE_S = 600.0
_PATIENT_S = 30.0
"""Between tries when the node has ended and the server has long been away: there is time, up to a week."""
_FIRST_BEAT_S = 0.1


class Orders:
    """What the server or a signal wants of this node. Setting one wakes the main thread through a pipe."""

    def __init__(self) -> None:
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.grace_s, self.most_grace_s = 10.0, float("inf")
        self.stop = False
        self.fenced = False
        self.on_why: Callable[[str], None] = lambda why: None
        """Called with the reason before the first stop is given."""
        self.on_command: Callable[[dict[str, Any]], None] = lambda command: None
        """Called with each command the server sends; it must not take long."""
        self.on_left: Callable[[float], None] = lambda left_s: None
        """Called with how long a lease has left, with every beat."""

    @property
    def stop_grace_s(self) -> float | None:
        return min(self.grace_s, self.most_grace_s) if self.stop else None

    @property
    def any(self) -> bool:
        return self.stop or self.fenced

    def give(self, *, stop: bool = False, fenced: bool = False, why: str | None = None) -> None:
        if stop and why and not self.stop:
            try:
                self.on_why(why)
            except Exception:
                logger.exception("the reason for the stop cannot be passed on")
        self.stop, self.fenced = self.stop or stop, self.fenced or fenced
        self.wake()

    def wake(self) -> None:
        try:
            os.write(self.wake_w, b"x")
        except BlockingIOError:
            pass

    def clear_wake(self) -> None:
        try:
            while os.read(self.wake_r, 4096):
                pass
        except BlockingIOError:
            pass


class Beats(threading.Thread):
    """Sends the node's state every second, and at once when it changes; passes the server's orders on."""

    def __init__(self, link: Link, orders: Orders, progress: Callable[[], dict[str, Any] | None]):
        super().__init__(name="beats", daemon=True)
        self._link, self._orders, self._progress = link, orders, progress
        self._changed = threading.Condition()
        self._body: dict[str, Any] = {"state": "preparing"}
        self._version = 1
        self._delivered = 0
        self._failing_since: float | None = None
        self._refused_since: float | None = None
        self._leaving = False
        self._said = ""

    def update(self, **fields: Any) -> int:
        """Say this from now on; returns a number for `delivered`."""
        with self._changed:
            self._body.update(fields)
            self._version += 1
            self._changed.notify_all()
            return self._version

    def delivered(self, version: int, timeout_s: float) -> bool:
        """Wait until the server has heard it, or will never hear of us again."""
        with self._changed:
            return self._changed.wait_for(lambda: self._delivered >= version or self._leaving, timeout_s)

    def leave(self) -> None:
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def run(self) -> None:
        # Joining told the server that we prepare; in the time a beat takes most nodes are running already.
        with self._changed:
            self._changed.wait_for(lambda: self._version > 1, _FIRST_BEAT_S)
        while not self._leaving:
            with self._changed:
                version, body = self._version, dict(self._body)
            body["progress"] = self._progress_now()
            try:
                reply = BeatReply(self._link.post("/beat", body))
                self._obey_all(reply)
                pause, self._failing_since, self._refused_since = reply.beat_in_s or BEAT_INTERVAL_S, None, None
                with self._changed:
                    self._delivered = max(self._delivered, version)
                    self._changed.notify_all()
            except ShoalError as error:
                pause = self._after(error, ended=body["state"] == "exited")
            except Exception:  # a node that no longer beats is lost
                logger.exception("a beat failed")
                pause = BEAT_INTERVAL_S
            with self._changed:
                self._changed.wait_for(lambda v=version: self._version > v or self._leaving, pause)  # type: ignore[misc]

    def _progress_now(self) -> dict[str, Any] | None:
        try:
            return self._progress()
        except Exception as error:
            if str(error) != self._said:
                logger.warning("progress cannot be told: %s", error, exc_info=True)
            self._said = str(error)
            return None

    def _obey_all(self, reply: BeatReply) -> None:
        """One order that cannot be obeyed keeps none of the others, nor the beat, from counting."""
        try:
            self._obey(reply)
        except Exception:
            logger.exception("an order of the server's failed")

    def _obey(self, reply: BeatReply) -> None:
        orders = self._orders
        orders.grace_s = reply.grace_s
        stages: list[Callable[[], object]] = []
        if reply.stop or reply.fenced:
            stages.append(lambda: orders.give(stop=reply.stop, fenced=reply.fenced, why=reply.why))
        if (left_s := reply.left_s) is not None:
            stages.append(lambda: orders.on_left(left_s))
        run_all([*stages, *(partial(orders.on_command, command) for command in reply.commands)])

    def _after(self, error: ShoalError, *, ended: bool) -> float:
        """What to make of a beat that failed; returns how long to wait before the next."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logger.info("beat: %s", error.message)
        if isinstance(error, Fenced):
            self._orders.give(fenced=True)
        elif isinstance(error, AuthError | NotFound):
            self._refused_since = self._refused_since or now
            if now - self._refused_since >= _REFUSED_S:
                self._orders.give(fenced=True)
                self.leave()
        else:
            self._refused_since = None
        if now - self._failing_since < _LONG_OUTAGE_S:
            return BEAT_INTERVAL_S / 2
        return _PATIENT_S if ended else 5 * BEAT_INTERVAL_S


class Every(threading.Thread):
    """Calls something again and again; errors are logged, never raised."""

    def __init__(self, interval_s: float, work: Callable[[], None]):
        super().__init__(name=f"every {interval_s:g} s", daemon=True)
        self._interval_s, self._work = interval_s, work
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(self._interval_s):
            try:
                self._work()
            except Exception:
                logger.exception("a regular task failed")

    def stop(self) -> None:
        self._end.set()
