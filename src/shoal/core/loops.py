"""Background loops that survive every exception and can say how they are. Standard library only: agents use them too.

A `Loop` owns one thread. Only that thread writes the loop's fields, and each field is replaced whole, so whoever asks for
`problem` reads a consistent value without a lock. A crash between two passes loses nothing: a pass reads all it needs.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from shoal.core.errors import ShoalError

logger = logging.getLogger(__name__)

BOUND_S = 60.0
"""A pass that takes longer than this, or begins this much after its time, makes its loop late."""
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.5, 5.0
"""After a failed pass. The longest is short: what failed should work within seconds once its cause is gone."""
_LEAST_PAUSE_S = 0.1
_SAY_AGAIN_S = 600.0


class Problem(NamedTuple):
    """Why a loop is not well."""

    name: str
    state: str
    """`failing`: its last pass raised. `late`: its present pass takes too long. `dead`: its thread has ended."""
    since_s: float
    """Seconds for which it has been so."""
    error: str | None = None

    def __str__(self) -> str:
        detail = f": {self.error}" if self.error else ""
        return f"{self.name} is {self.state} (for {self.since_s:.0f} s){detail}"


class Loop:
    """A thread that calls one function again and again, whatever that raises."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        wait: Callable[[float], object] | None = None,
        is_closing: Callable[[], bool] = lambda: False,
        every_s: float = 1.0,
        bound_s: float = BOUND_S,
    ):
        """`step` may return the seconds until it is due again; `wait` is called with them and may return sooner."""
        self.name, self._step, self._every_s, self._bound_s = name, step, every_s, bound_s
        self._woken = threading.Event()
        self._wait = wait or self._wait_until_woken
        self._is_closing = is_closing
        self._stopping = False
        self._due_at = time.monotonic()
        """When the present pass should have begun: it is late so long after this."""
        self._failures = 0
        self._failing_since = self._said_at = 0.0
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._due_at = time.monotonic()
        self._thread.start()

    def wake(self) -> None:
        """Have the next pass begin now. From any thread; only for a loop without a `wait` of its own."""
        self._woken.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """Let the present pass end and begin no other."""
        self._stopping = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def problem(self) -> Problem | None:
        """Return what is wrong with it now, or None."""
        if self._thread.ident is None or self._is_over():
            return None
        now = time.monotonic()
        if not self._thread.is_alive():
            return Problem(self.name, "dead", max(0.0, now - self._due_at), self._error)
        if self._error is not None:
            return Problem(self.name, "failing", now - self._failing_since, self._error)
        late_s = now - self._due_at
        return Problem(self.name, "late", late_s) if late_s > self._bound_s else None

    def _run(self) -> None:
        while not self._is_over():
            self._due_at = time.monotonic()
            pause_s = self._every_s
            try:
                found = self._step()
                pause_s = self._every_s if found is None else found
                self._passed()
            except BaseException as error:  # some libraries raise what is no Exception; it must not end the thread
                pause_s = self._failed(error)
            if not self._is_over():
                self._pause(pause_s)

    def _pause(self, pause_s: float) -> None:
        self._due_at = time.monotonic() + pause_s
        try:
            if self._failures:  # else one that is woken all the time would do nothing but fail
                time.sleep(_LEAST_PAUSE_S)
            self._wait(pause_s)
        except BaseException as error:
            self._failed(error)
            time.sleep(_LEAST_PAUSE_S)

    def _wait_until_woken(self, pause_s: float) -> None:
        self._woken.wait(pause_s)
        self._woken.clear()

    def _is_over(self) -> bool:
        try:
            return self._stopping or self._is_closing()
        except Exception:
            logger.exception("%s: cannot say whether it is closing", self.name)
            return False

    def _passed(self) -> None:
        if self._failures:
            logger.info("%s works again after %d failed passes", self.name, self._failures)
        self._failures, self._error = 0, None

    def _failed(self, error: BaseException) -> float:
        """Note it, log it once for each distinct text and then now and then; return how long to wait."""
        now, text = time.monotonic(), describe(error)
        if not self._failures:
            self._failing_since = now
        self._failures += 1
        if text != self._error or now - self._said_at > _SAY_AGAIN_S:
            self._said_at = now
            logger.error(
                "%s: %s (failed %d times in a row)",
                self.name,
                text,
                self._failures,
                exc_info=None if isinstance(error, ShoalError) else error,
            )
        self._error = text
        return float(min(_FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10), _MOST_PAUSE_S))


class Loops:
    """All loops of one process, and other things that run in its background."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, Callable[[], Problem | None]] = {}

    def start(self, loop: Loop) -> None:
        self.watch(loop.name, loop.problem)
        loop.start()

    def watch(self, name: str, check: Callable[[], Problem | None]) -> None:
        """Ask this whenever somebody wants to know; it must answer at once. A newer check of the name takes its place."""
        with self._lock:
            self._checks[name] = check

    def problems(self) -> list[Problem]:
        with self._lock:
            checks = list(self._checks.items())
        return [problem for name, check in checks if (problem := _checked(name, check)) is not None]


def run_all(stages: Iterable[Callable[[], object]]) -> None:
    """Call each, though one before it failed; then raise the first error, so that the pass counts as failed."""
    first: Exception | None = None
    for stage in stages:
        try:
            stage()
        except Exception as error:
            if first is not None:
                logger.warning("also failed: %s", describe(error))
            first = first or error
    if first is not None:
        raise first


def serve_each(
    listener: socket.socket,
    serve: Callable[[socket.socket], object],
    closed: threading.Event,
    *,
    name: str,
    at_once: int = 1000,
) -> None:
    """Accept connections until `closed` is set, each served and closed in a daemon thread called `name`.

    A connection that cannot be accepted or served, for lack of descriptors or threads say, ends nothing; one above
    `at_once` is closed. A place is taken here and given back by the connection's thread, or here if there is no thread.
    """
    places = threading.BoundedSemaphore(at_once)

    def run(client: socket.socket) -> None:
        try:
            with client:
                serve(client)
        except Exception as error:
            logger.warning("%s: a connection failed: %s", name, describe(error))
        finally:
            places.release()

    while not closed.is_set():
        try:
            client, _ = listener.accept()
        except OSError as error:
            if closed.is_set():
                return
            logger.warning("%s: a connection could not be accepted: %s", name, error)
            closed.wait(_LEAST_PAUSE_S)
            continue
        if not places.acquire(blocking=False):
            client.close()
            continue
        try:
            threading.Thread(target=run, args=(client,), name=name, daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            logger.warning("%s: a connection could not be served: %s", name, error)
            client.close()
            places.release()


def describe(error: BaseException) -> str:
    """One line for people."""
    if isinstance(error, ShoalError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _checked(name: str, check: Callable[[], Problem | None]) -> Problem | None:
    try:
        return check()
    except Exception as error:
        return Problem(name, "failing", 0.0, describe(error))
