"""Background loops that survive every exception and can report their state. Standard library only: agents use them too.

A `Loop` owns one thread. Only that thread writes the loop's fields, and each field is replaced as a whole, so other threads
that call `problem` read a consistent value without a lock. A crash between two passes loses nothing: each pass reads everything
it needs.
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
"""Seconds after which a loop counts as late: its pass takes longer than this, or begins this much after it was due."""
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.5, 5.0
"""Shortest and longest pause after a failed pass. Even the longest is short, so that the loop works again within seconds once
the cause is gone."""
_LEAST_PAUSE_S = 0.1
"""Seconds a failing loop pauses at least, even if it is woken all the time."""
_SAY_AGAIN_S = 600.0
"""Seconds after which the same error is logged again."""


class Problem(NamedTuple):
    """A loop that does not work, and the reason."""

    name: str
    state: str
    """`failing`: the last pass raised. `late`: the present pass takes too long. `dead`: the thread has ended."""
    since_s: float
    """Seconds the loop has been in this state."""
    error: str | None = None

    def __str__(self) -> str:
        detail = f": {self.error}" if self.error else ""
        return f"{self.name} is {self.state} (for {self.since_s:.0f} s){detail}"


class Loop:
    """Thread that calls one function repeatedly and survives everything the function raises."""

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
        """Prepare the loop; `start` starts it.

        step        one pass; may return the seconds until the next one is due, None for `every_s`
        wait        called with these seconds between two passes; may return earlier. Default: sleep until they are over or
                    `wake` is called
        is_closing  returns True when the loop should end
        bound_s     seconds after which a pass counts as late
        """
        self.name, self._step, self._every_s, self._bound_s = name, step, every_s, bound_s
        self._woken = threading.Event()
        self._wait = wait or self._wait_until_woken
        self._is_closing = is_closing
        self._stopping = False
        self._due_at = time.monotonic()
        """Time the present pass should have begun. The loop is late once `bound_s` have passed since then."""
        self._failures = 0
        self._failing_since = self._said_at = 0.0
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._due_at = time.monotonic()
        self._thread.start()

    def wake(self) -> None:
        """Begin the next pass now. May be called from any thread, but only for a loop without a `wait` function of its own."""
        self._woken.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """Let the present pass end, start no other, and wait up to `timeout_s` for the thread to end."""
        self._stopping = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def problem(self) -> Problem | None:
        """Return the loop's present problem, or None."""
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
            except BaseException as error:  # some libraries raise a bare BaseException; it must not end the thread
                pause_s = self._failed(error)
            if not self._is_over():
                self._pause(pause_s)

    def _pause(self, pause_s: float) -> None:
        self._due_at = time.monotonic() + pause_s
        try:
            if self._failures:  # a failing loop that is woken all the time must not spin
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
        """Record the error and return the seconds to wait.

        Each distinct text is logged once, then again every `_SAY_AGAIN_S`.
        """
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
    """All loops of one process, and other background work that can report problems."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, Callable[[], Problem | None]] = {}

    def start(self, loop: Loop) -> None:
        self.watch(loop.name, loop.problem)
        loop.start()

    def watch(self, name: str, check: Callable[[], Problem | None]) -> None:
        """Register a check that `problems` calls. It must return at once. It replaces an earlier check with the same name."""
        with self._lock:
            self._checks[name] = check

    def problems(self) -> list[Problem]:
        """Return the present problems of all registered checks."""
        with self._lock:
            checks = list(self._checks.items())
        return [problem for name, check in checks if (problem := _checked(name, check)) is not None]


def run_all(stages: Iterable[Callable[[], object]]) -> None:
    """Call every stage even if an earlier one fails; then raise the first error, so that the pass counts as failed."""
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
    """Accept connections until `closed` is set, and serve each in a daemon thread called `name`, which also closes it.

    A connection that cannot be accepted or served (for lack of file descriptors or threads, for example) does not end the loop.
    At most `at_once` connections are served at the same time; more are closed at once. The semaphore is acquired here and
    released by the connection's thread, or here if no thread could be started.
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
        except RuntimeError as error:  # the system has no more threads
            logger.warning("%s: a connection could not be served: %s", name, error)
            client.close()
            places.release()


def describe(error: BaseException) -> str:
    """Return an error as one line for people: the message of a ShoalError, otherwise the class and the text."""
    if isinstance(error, ShoalError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _checked(name: str, check: Callable[[], Problem | None]) -> Problem | None:
    try:
        return check()
    except Exception as error:
        return Problem(name, "failing", 0.0, describe(error))
