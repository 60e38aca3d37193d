"""Shutdown of a process's swarm parts: however the script ends, no process is left behind and none hangs."""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import psutil

logger = logging.getLogger(__name__)

_GOODBYE_S = 15.0
"""Maximum seconds for an orderly shutdown, because a running averaging round may never end."""
_POLL_S = 0.5
_here: _Membership | None = None


def enter(part: Any) -> None:
    """Shut down this DHT, averager or optimizer when the script ends, also by an exception."""
    global _here
    if _here is None or _here.is_over:
        _here = _Membership()
    _here.add(part)


def leave() -> None:
    """Shut everything down now. A second call only waits until that is done."""
    if _here is not None:
        _here.leave()


def metrics(optimizer: Any, since: int) -> dict[str, float]:
    """Return metrics of the swarm's new step; an empty dict while it is still at step `since`."""
    step = int(optimizer.local_epoch)
    if step == since:
        return {}
    peers = optimizer.tracker.global_progress.num_peers
    speed = optimizer.local_progress.samples_per_second
    return {"swarm/step": step, "swarm/peers": peers, "swarm/samples_per_s": float(speed)}


class _Membership:
    """Parts to shut down. Without this, hivemind's threads would keep a failed script waiting for ever."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._pid = os.getpid()
        self._left = False
        self._leaving = threading.Lock()
        self._excepthook: Callable[..., Any] = sys.excepthook
        sys.excepthook = self._on_exception
        threading.Thread(target=self._wait_for_the_end, name="shoal-swarm-leave", daemon=True).start()
        atexit.register(self.leave)

    @property
    def is_over(self) -> bool:
        return self._left or os.getpid() != self._pid

    def add(self, part: Any) -> None:
        if not any(part is known for known in self._parts):
            self._parts.append(part)

    def leave(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._leaving:
            if not self._left:
                self._left = True
                self._leave()

    def _leave(self) -> None:
        started = _started()
        shutdown = threading.Thread(target=self._shut_down, name="shoal-swarm-goodbye", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down and starts no more threads
            shutdown.start()
            shutdown.join(_GOODBYE_S)
        if shutdown.is_alive():
            logger.warning("the swarm's processes did not stop within %.0f s and are killed", _GOODBYE_S)
        _end(started)
        atexit.unregister(self.leave)
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._excepthook

    def _shut_down(self) -> None:
        """Shut down the parts in reverse order, because optimizers need their DHT to the end."""
        for part in reversed(self._parts):
            try:
                if part.is_alive():
                    part.shutdown()
            except Exception as error:
                logger.debug("shutdown of %s: %s", type(part).__name__, error)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._excepthook(kind, error, trace)
        self.leave()

    def _wait_for_the_end(self) -> None:
        """Wait for the end of the main thread, then leave. atexit is too late: Python waits for hivemind's threads first."""
        main = threading.main_thread()
        while main.is_alive() and not self._left:
            main.join(_POLL_S)
        self.leave()


def _started() -> list[psutil.Process]:
    """Return hivemind's processes and the p2p daemon that one of them has started."""
    found: list[psutil.Process] = []
    for child in multiprocessing.active_children():
        if any(kind.__module__.startswith("hivemind.") for kind in type(child).__mro__):
            try:
                process = psutil.Process(child.pid)
                found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
    return found


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=3.0)
