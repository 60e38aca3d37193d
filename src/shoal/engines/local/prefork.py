"""The local engine's side of `shoal.agent.prefork.parent`: starts it when agents follow each other closely, and requests forks.

The engine never waits for the prefork parent to come up: until it is ready, or when it fails, agents are started by their
command line.

Why this is safe: the engine calls these methods only under its own lock, and no call takes longer than _ANSWER_S. An agent is
forked in two steps: it sends its pid, the engine opens a pidfd (from then on the pid cannot be confused with another process),
and only then sends GO. If the engine times out or dies in between, its end of the socket closes and the agent exits without
doing anything, so the node can be started by its command line. If the prefork parent dies, its agents continue: nothing ties
them to it.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.agent.prefork import process_title
from shoal.agent.prefork.parent import GO, IDLE_S, LONGEST_REQUEST, PROGRAM
from shoal.agent.workers.runtime import base_env

logger = logging.getLogger(__name__)

_SETTINGS = ("SHOAL_HOME", "SHOAL_SANDBOX", "SHOAL_LOG_LEVEL", "SHOAL_DEBUG")
_TRY_AGAIN_S = 600.0
"""Seconds to wait after a prefork parent that never became ready: another would likely fail too, and loading costs CPU time."""
_ANSWER_S = 5.0
"""Seconds to wait for a forked agent. A fork takes milliseconds, even of a large process on a busy machine."""


class WarmAgent:
    """An agent that is not our child process, with the methods of Popen that the engine needs."""

    def __init__(self, pid: int, fd: int):
        """Wrap a process. `fd` is its pidfd, which is closed with this object."""
        self.pid, self._fd = pid, fd

    def poll(self) -> int | None:
        """Return None while it runs, then 0: the exit code of a process that is not our child is unknown."""
        return 0 if readable(self._fd, 0) else None

    def kill(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if not readable(self._fd, timeout):
            raise subprocess.TimeoutExpired(f"agent {self.pid}", timeout or 0.0)
        return 0

    def __del__(self) -> None:
        os.close(self._fd)


class PreforkParent:
    """Starts the prefork parent and has it fork agents. Not thread-safe: the engine calls it under its lock."""

    def __init__(self, python: str, env: Mapping[str, str], log: Path, clock: Callable[[], float] = time.monotonic):
        """Set up without starting.

        `env` is added to the agents' environment; workers can read it, so it must hold no secret.
        """
        self._python, self._env, self._log, self._clock = python, dict(env), log, clock
        self._process: subprocess.Popen[bytes] | WarmAgent | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._asked_at = self._not_before = -math.inf

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def agent(self, launch_file: Path, cpu_threads: int) -> WarmAgent | None:
        """Return a new forked agent that runs this launch file, or None if there is no prefork parent ready."""
        last, self._asked_at = self._asked_at, self._clock()
        try:
            if self._control is None:
                if self._asked_at - last < IDLE_S and self._asked_at >= self._not_before:
                    self._start(cpu_threads)
                return None
            if not self._ready:
                if not readable(self._control.fileno(), 0):
                    return None
                if not self._control.recv(1):
                    raise ConnectionError(f"it ended before it was ready; see {self._log}")
                self._ready = True
            return self._fork(self._control, launch_file)
        except OSError as error:
            logger.info("prefork parent: %s", error)
            if not self._ready:
                self._not_before = self._asked_at + _TRY_AGAIN_S
            self.close()
            return None

    def close(self) -> None:
        """End the prefork parent at once; its agents continue."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None
        self._ready = False

    def _start(self, cpu_threads: int) -> None:
        self._control, theirs = socket.socketpair()
        argv = [self._python, "-u", "-c", PROGRAM, str(theirs.fileno())]
        argv, env = process_title.roomy(argv, prefork_env(cpu_threads, self._env))
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def _fork(self, control: socket.socket, launch_file: Path) -> WarmAgent | None:
        request = os.fsencode(launch_file)
        if len(request) > LONGEST_REQUEST:
            return None
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(control, [request], [theirs.fileno()])
            ours.settimeout(_ANSWER_S)
            answer = ours.recv(8)
            if not answer:
                raise ConnectionError("it has ended")
            pid = int.from_bytes(answer, "big")
            agent = WarmAgent(pid, os.pidfd_open(pid))
            ours.sendall(GO)
            return agent


def prefork_env(cpu_threads: int, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a prefork parent whose workers have this many threads each."""
    # The same variables as a worker's, because the interpreter reads some of them only when it starts.
    env = base_env(os.environ) | {"OMP_NUM_THREADS": str(cpu_threads), "PYTHONUNBUFFERED": "1"}
    return env | {name: os.environ[name] for name in _SETTINGS if name in os.environ} | dict(more)


def readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until there is something to read, or the end, for at most `timeout_s` seconds."""
    # poll instead of select, which cannot handle descriptors above 1023; a server may have that many.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))
