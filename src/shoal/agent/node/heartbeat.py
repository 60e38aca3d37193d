"""Heartbeats: the thread that reports the node's state to the server and passes on the commands in its replies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.agent.link import Link
from shoal.agent.wire import BEAT_INTERVAL_S, BeatReply
from shoal.agent.workers.stop_signals import StopSignals
from shoal.core.background_loops import run_all
from shoal.core.errors import AuthError, Fenced, NotFound, ShoalError
from shoal.core.lag import Lag
from shoal.core.steady_clock import since_boot_s

logger = logging.getLogger(__name__)

_REFUSED_S = 30.0
"""Seconds of refused tokens after which the node gives up; shorter refusals may be a server restart."""
_LONG_OUTAGE_S = 600.0
_PATIENT_S = 30.0
"""Seconds between tries when the node has ended and the server has been away for long; tries continue for a week."""
_FIRST_BEAT_S = 0.1
_TICK_S = 0.5
"""Seconds between two ticks of the clock that notices that this process, or the whole machine, stood still."""


class NodeControl:
    """Stop and fence requests from the server or a signal. Setting one wakes the main thread through a pipe.

    Written by the heartbeat thread, the lease's thread and signal handlers; read by the main thread, which reads the flags
    again for each byte in the pipe. Flags are never withdrawn. There is no lock, because signal handlers must not wait for
    one. So two requests at the same moment may overwrite each other's flag, which does no harm: only heartbeats set `fenced`,
    and the next one sets it again; a `stop` can only be lost to `fenced`, which kills the workers anyway.
    """

    def __init__(self) -> None:
        self.signals = StopSignals()
        self.grace_s, self.most_grace_s = 10.0, float("inf")
        self.stop = False
        self.fenced = False
        self.on_why: Callable[[str], None] = lambda why: None
        """Called with the reason before the first stop is requested."""
        self.on_command: Callable[[dict[str, Any]], None] = lambda command: None
        """Called with each command the server sends; it must not take long."""
        self.on_left: Callable[[float], None] = lambda left_s: None
        """Called with the seconds a lease has left, after every heartbeat."""

    @property
    def stop_grace_s(self) -> float | None:
        return min(self.grace_s, self.most_grace_s) if self.stop else None

    @property
    def any(self) -> bool:
        return self.stop or self.fenced

    def request(self, *, stop: bool = False, fenced: bool = False, why: str | None = None) -> None:
        """Request a stop of the workers (SIGTERM, then SIGKILL), or fence the node (SIGKILL at once)."""
        if stop and why and not self.stop:
            try:
                self.on_why(why)
            except Exception:
                logger.exception("cannot pass on the reason for the stop")
        self.stop, self.fenced = self.stop or stop, self.fenced or fenced
        self.signals.wake()


class Beats(threading.Thread):
    """Sends the node's state every second, and at once when it changes; passes the server's commands on.

    `_changed` guards the body, its version and `_delivered`. A request is sent without the lock: if the state changes
    meanwhile, the version differs, and the loop sends again without waiting.
    """

    def __init__(
        self,
        link: Link,
        control: NodeControl,
        progress: Callable[[], dict[str, Any] | None],
        *,
        clock: Callable[[], float] = since_boot_s,
    ):
        super().__init__(name="beats", daemon=True)
        self._link, self._control, self._progress = link, control, progress
        self._changed = threading.Condition()
        self._body: dict[str, Any] = {"state": "preparing"}
        self._once: dict[str, Any] = {}
        """Fields of the next heartbeat only."""
        self._version = 1
        self._delivered = 0
        self._lag = Lag(clock, who="this machine")
        self._failing_since: float | None = None
        self._refused_since: float | None = None
        self._stopping = False
        self._said = ""

    def update(self, **fields: Any) -> int:
        """Change fields of all future heartbeats; return a version number to pass to `delivered`."""
        with self._changed:
            self._body.update(fields)
            self._version += 1
            self._changed.notify_all()
            return self._version

    def add_once(self, **fields: Any) -> None:
        """Add fields to the next heartbeat that is sent, and to no other."""
        with self._changed:
            self._once.update(fields)

    def delivered(self, version: int, timeout_s: float) -> bool:
        """Wait until the server has this version, or refuses us for good; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._delivered >= version or self._stopping, timeout_s)

    def stop(self) -> None:
        """End the thread after the current heartbeat, and release those that wait in `delivered`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def run(self) -> None:
        # The server knows from the join that we prepare. Most nodes run within 0.1 s, which saves them one heartbeat.
        with self._changed:
            self._changed.wait_for(lambda: self._version > 1, _FIRST_BEAT_S)
        ticker = Every(_TICK_S, self._lag.tick)
        ticker.start()
        while not self._stopping:
            with self._changed:
                version, body = self._version, self._body | self._once
                self._once = {}
            body["progress"] = self._progress_now()
            if stalled_s := self._lag.stalled_s:
                body["stalled_s"] = round(stalled_s, 1)
            try:
                reply = BeatReply(self._link.post("/beat", body))
                self._obey_all(reply)
                pause, self._failing_since, self._refused_since = reply.beat_in_s or BEAT_INTERVAL_S, None, None
                with self._changed:
                    self._delivered = max(self._delivered, version)
                    self._changed.notify_all()
            except ShoalError as error:
                pause = self._after(error, ended=body["state"] == "exited")
            except Exception:  # without heartbeats the server would count the node as lost
                logger.exception("a beat failed")
                pause = BEAT_INTERVAL_S
            with self._changed:
                self._changed.wait_for(lambda v=version: self._version > v or self._stopping, pause)  # type: ignore[misc]
        ticker.stop()

    def _progress_now(self) -> dict[str, Any] | None:
        try:
            return self._progress()
        except Exception as error:
            if str(error) != self._said:
                logger.warning("cannot report progress: %s", error, exc_info=True)
            self._said = str(error)
            return None

    def _obey_all(self, reply: BeatReply) -> None:
        """Carry out the commands of a reply. One that fails is logged; the others and the heartbeat itself still count."""
        try:
            self._obey(reply)
        except Exception:
            logger.exception("a server command failed")

    def _obey(self, reply: BeatReply) -> None:
        control = self._control
        control.grace_s = reply.grace_s
        stages: list[Callable[[], object]] = []
        if reply.stop or reply.fenced:
            stages.append(lambda: control.request(stop=reply.stop, fenced=reply.fenced, why=reply.why))
        if (left_s := reply.left_s) is not None:
            stages.append(lambda: control.on_left(left_s))
        run_all([*stages, *(partial(control.on_command, command) for command in reply.commands)])

    def _after(self, error: ShoalError, *, ended: bool) -> float:
        """Handle a failed heartbeat; return the seconds to wait before the next."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logger.info("beat: %s", error.message)
        if isinstance(error, Fenced):
            self._control.request(fenced=True)
        elif isinstance(error, AuthError | NotFound):
            self._refused_since = self._refused_since or now
            if now - self._refused_since >= _REFUSED_S:
                self._control.request(fenced=True)
                self.stop()
        else:
            self._refused_since = None
        if now - self._failing_since < _LONG_OUTAGE_S:
            return BEAT_INTERVAL_S / 2
        return _PATIENT_S if ended else 5 * BEAT_INTERVAL_S


class Every(threading.Thread):
    """Thread that calls a function at a fixed interval; errors are logged, never raised."""

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
