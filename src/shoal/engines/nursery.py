"""The local engine's side of `shoal.agent.nursery`: starts it when agents follow each other closely, and has agents forked by it.

It is never waited for: while there is none, or something is wrong with it, agents are started by their command line.
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

from shoal.agent import guise
from shoal.agent.nursery import GO, IDLE_S, LONGEST_REQUEST, PROGRAM
from shoal.agent.runtime import base_env

logger = logging.getLogger(__name__)

_SETTINGS = ("SHOAL_HOME", "SHOAL_SANDBOX", "SHOAL_LOG_LEVEL", "SHOAL_DEBUG")
_TRY_AGAIN_S = 600.0
"""After one that never came up: the next will hardly fare better, and trying costs the jobs their processors."""
_ANSWER_S = 5.0
"""A fork takes milliseconds, even of a large process on a busy machine."""


class WarmAgent:
    """An agent that is not our child; what the engine needs of a Popen."""

    def __init__(self, pid: int, fd: int):
        """`fd` is the process's own, which is closed with this object."""
        self.pid, self._fd = pid, fd

    def poll(self) -> int | None:
        """None while it runs; how it ended is not known to us."""
        return 0 if _readable(self._fd, 0) else None

    def kill(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if not _readable(self._fd, timeout):
            raise subprocess.TimeoutExpired(f"agent {self.pid}", timeout or 0.0)
        return 0

    def __del__(self) -> None:
        os.close(self._fd)


class Nursery:
    """Not safe for threads: the engine asks under its lock."""

    def __init__(self, python: str, env: Mapping[str, str], log: Path, clock: Callable[[], float] = time.monotonic):
        """`env` is for the agents, on top of ours. It reaches the memory of workers, so there must be no secret in it."""
        self._python, self._env, self._log, self._clock = python, dict(env), log, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._asked_at = self._not_before = -math.inf

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def agent(self, launch_file: Path, cpu_threads: int) -> WarmAgent | None:
        """A new agent that runs this launch file, or None if none can be had at once."""
        last, self._asked_at = self._asked_at, self._clock()
        try:
            if self._control is None:
                if self._asked_at - last < IDLE_S and self._asked_at >= self._not_before:
                    self._start(cpu_threads)
                return None
            if not self._ready:
                if not _readable(self._control.fileno(), 0):
                    return None
                if not self._control.recv(1):
                    raise ConnectionError(f"it ended before it was ready; see {self._log}")
                self._ready = True
            return self._fork(self._control, launch_file)
        except OSError as error:
            logger.info("no nursery: %s", error)
            if not self._ready:
                self._not_before = self._asked_at + _TRY_AGAIN_S
            self.close()
            return None

    def close(self) -> None:
        """It ends at once, its agents stay."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None
        self._ready = False

    def _start(self, cpu_threads: int) -> None:
        self._control, theirs = socket.socketpair()
        # What a worker would be given, so that there is nothing its interpreter should have known from the start.
        env = base_env(os.environ) | {"OMP_NUM_THREADS": str(cpu_threads), "PYTHONUNBUFFERED": "1"}
        env |= {name: os.environ[name] for name in _SETTINGS if name in os.environ} | self._env
        argv, env = guise.roomy([self._python, "-u", "-c", PROGRAM, str(theirs.fileno())], env)
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


def _readable(fd: int, timeout_s: float | None) -> bool:
    # select() knows no descriptor beyond 1023, and a server may have that many.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))
