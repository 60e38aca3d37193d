"""Starts, watches and ends the workers of a node through their parent process (`parent.py`), which runs inside the sandbox.

Why this is safe: only the agent's main thread uses a `Workers` object, so it needs no lock. The worker parent alone forks and
reaps workers; the agent learns of an exit only from the parent's `exit` lines. No process survives a crash: when
the agent dies, its end of the socket closes and the parent kills everything below itself; when the parent dies, the agent
reads the end of the socket (`gone`) and `kill` kills everything below the agent, which adopts orphans as a subreaper. `kill`
reads `exit` lines until the socket ends, so an exit that happens between two steps is not lost.
"""

from __future__ import annotations

import logging
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from shoal.agent.node.end_reasons import Exit, first_failure
from shoal.agent.workers import parent as worker_parent
from shoal.agent.workers.logs import Capture
from shoal.agent.workers.stop_signals import TERM_SIGNALS

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 30.0
FAILURE_GRACE_S = 1.5
"""Seconds between SIGTERM and SIGKILL for the peers of a failed worker, which cannot continue without it."""
_SETTLE_S = 0.2
"""Seconds to wait after an error exit for the exit of a killed peer, which may be the real cause."""
_KILL_PATIENCE_S = 2.0
_UNKILLABLE_S = 60.0
"""Seconds after which a killed process counts as one that cannot be killed. Freeing much memory takes a while, too."""
_OBEYED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of programs that handle SIGTERM or SIGINT and then exit."""
# The compiled file if there is one: compiling the source again would take as long as everything else the parent does.
_PARENT_FILE = next(
    p for p in (getattr(worker_parent, "__cached__", None), worker_parent.__file__) if p and Path(p).is_file()
)


class Spec(NamedTuple):
    """One process to start."""

    argv: list[str]
    env: dict[str, str]
    rank: int | None
    """Rank of its output; None for the output of Shoal's own launcher (torchrun)."""
    cpus: list[int] = []
    """CPUs it may run on; empty: all."""
    group: bool = False
    """True: send SIGTERM to its whole process group, because shells do not pass it on."""


class LaunchFailed(Exception):
    """The sandbox or the worker parent did not start."""


class Output(Protocol):
    """Interface of the object that reads the workers' output."""

    def pipe(self, rank: int | None, stream: str) -> int: ...


class Workers:
    """The workers of a node, started and ended through their parent process."""

    def __init__(self, capture: Output):
        self._capture = capture
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._rest = b""
        self.gone = False
        """True once the worker parent has ended; no more exits will be reported."""
        self.root_pid = os.getpid()
        """Pid whose descendants all belong to the job."""
        self.unkillable: list[int] = []
        """Processes that `kill` could not end: they wait in the kernel, for a device or a file system."""

    def start(
        self, specs: list[Spec], cwd: Path, wrap: Callable[[list[str]], list[str]], *, reap: bool, env: dict[str, str]
    ) -> None:
        """Start the worker parent and have it start the workers; raise `LaunchFailed` if it does not come up.

        `wrap` turns a command into one that runs in the sandbox; `env` is the environment of the sandbox and the worker
        parent. With `reap` the worker parent adopts orphaned processes of the workers.
        """
        ours, theirs = socket.socketpair()
        pipes = [
            (self._capture.pipe(s.rank, _stream(s, "out")), self._capture.pipe(s.rank, _stream(s, "err")))
            for s in specs
        ]
        own = self._capture.pipe(None, "sys")
        fds = [theirs.fileno(), *(fd for pair in pipes for fd in pair)]
        # A cluster manager may send SIGTERM to every process of a job, and a terminal SIGINT to its foreground group. If the
        # sandbox process obeyed, it would kill all workers before they could handle the signal. So it inherits these signals
        # blocked; each worker unblocks them (parent.become_worker).
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, TERM_SIGNALS)
        try:
            self._process = subprocess.Popen(
                wrap([sys.executable, "-I", "-S", _PARENT_FILE, str(theirs.fileno())]),
                stdin=subprocess.DEVNULL,
                stdout=own,
                stderr=own,
                env=env,
                cwd="/",
                pass_fds=fds,
            )
        except OSError as error:
            raise LaunchFailed(str(error)) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            theirs.close()
            for fd in [own, *fds[1:]]:
                os.close(fd)
        self._socket = ours
        workers = [
            {"argv": s.argv, "env": s.env, "out": out, "err": err, "group": s.group, "cpus": s.cpus}
            for s, (out, err) in zip(specs, pipes, strict=True)
        ]
        data = marshal.dumps({"cwd": str(cwd), "reap": reap, "workers": workers})
        try:
            ours.sendall(len(data).to_bytes(8, "big") + data)
        except OSError as error:
            raise LaunchFailed(f"the sandbox did not start: {error}") from error
        self._first_line(ours)

    def _first_line(self, end: socket.socket) -> str:
        """Return the first line that the worker parent sends after its start."""
        end.settimeout(HELLO_TIMEOUT_S)
        try:
            while b"\n" not in self._rest:
                piece = end.recv(4096)
                if not piece:
                    raise LaunchFailed("the sandbox ended before it was ready")
                self._rest += piece
        except OSError as error:
            raise LaunchFailed(f"the sandbox did not start: {error}") from error
        line, _, self._rest = self._rest.partition(b"\n")
        end.setblocking(False)
        return line.decode(errors="replace")

    def fileno(self) -> int:
        return self._socket.fileno() if self._socket else -1

    def events(self) -> list[Exit]:
        """Return the workers that ended since the last call."""
        now = time.monotonic()
        while self._socket and not self.gone:
            try:
                piece = self._socket.recv(4096)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.gone = not piece
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return [_exit(line, now) for line in lines if line.startswith(b"exit ")]

    def terminate(self) -> None:
        self._send(b"T")

    def kill(self) -> list[Exit]:
        """Send SIGKILL to all processes of the job and wait until none is left; return the exits reported meanwhile."""
        self._send(b"K")
        exits: list[Exit] = []
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while not self.gone and (left_s := deadline - time.monotonic()) > 0:
            wait_readable([self.fileno()], left_s)
            exits += self.events()
        self._end_sandbox()
        if self._process is not None:
            try:
                self._process.wait(_KILL_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if worker_parent.kill_below(os.getpid()):
            self.unkillable = worker_parent.kill_below(os.getpid(), _UNKILLABLE_S)
            logger.error("processes that cannot be killed: %s", self.unkillable)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.gone = True
        return exits

    def _end_sandbox(self) -> None:
        """End the sandbox. Nothing to do here, because it ends with the worker parent; `WarmWorkers` overrides this."""

    def _send(self, command: bytes) -> None:
        if self._socket is not None and not self.gone:
            try:
                self._socket.send(command)
            except OSError as error:
                logger.info("worker parent: %s", error)


class Action(Enum):
    """Decision of `Watch`."""

    WAIT = "wait"
    TERMINATE = "terminate"
    KILL = "kill"


class Watch:
    """Decides when to terminate or kill a node's workers, from their exits and the requests to stop.

    Performs no action itself.
    """

    def __init__(self, count: int):
        self._count = count
        self.exits: list[Exit] = []
        self.termed_at: float | None = None
        self.killed_at: float | None = None
        self._kill_at: float | None = None
        self.told = False
        """True if the workers are being stopped on request and not because of a failure."""

    @property
    def complete(self) -> bool:
        """True if the exits of all workers are known."""
        return len(self.exits) >= self._count

    @property
    def done(self) -> bool:
        return self.complete or self.killed_at is not None

    @property
    def lost_one(self) -> bool:
        """True if a worker failed, maybe while it wrote a file. One that exits in response to our SIGTERM does not count."""
        return any(e.code and not (self.termed_at and e.at >= self.termed_at and e.code in _OBEYED) for e in self.exits)

    @property
    def failure(self) -> Exit | None:
        return first_failure(self.exits, self.termed_at, self.killed_at)

    def next_action(self, now: float, *, stop_grace_s: float | None, fenced: bool) -> Action:
        """Return what to do now. `stop_grace_s` is the time between SIGTERM and SIGKILL, or None if no stop was requested."""
        failure = self.failure
        if (fenced or stop_grace_s is not None) and failure is None:
            self.told = True
        if fenced or (self._kill_at is not None and now >= self._kill_at):
            self.killed_at = now
            return Action.KILL
        if self.termed_at is not None:
            return Action.WAIT
        if stop_grace_s is not None:
            return self._terminate(now, stop_grace_s)
        if failure is not None and (failure.code < 0 or now - failure.at >= _SETTLE_S):
            return self._terminate(now, FAILURE_GRACE_S)
        return Action.WAIT

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next action is due if nothing else happens, or None."""
        if self._kill_at is not None:
            return max(0.0, self._kill_at - now)
        if self.failure is not None:
            return _SETTLE_S
        return None

    def _terminate(self, now: float, grace_s: float) -> Action:
        self.termed_at, self._kill_at = now, now + grace_s
        return Action.TERMINATE


def rank_pipes(capture: Capture, folder: Path, ranks: range, own: Sequence[Mapping[str, str]]) -> list[str]:
    """Create named pipes for workers that torchrun starts; return the command prefix with which a worker opens its own.

    `own` are variables that only one worker gets, by local rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for local, rank in enumerate(ranks):
        (folder / f"{local}.env").write_text("".join(f"{name}={value}\n" for name, value in own[local].items()))
        for stream in ("out", "err"):
            path = folder / f"{local}.{stream}"
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            # Open for writing too: otherwise reads would end with the first worker, and open would block until one starts.
            capture.add(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), rank, stream)
    return [sys.executable, "-I", "-S", _PARENT_FILE, "--rank-exec", str(folder)]


def wait_readable(fds: list[int], timeout_s: float | None) -> None:
    select.select([fd for fd in fds if fd >= 0], [], [], timeout_s)


def _stream(spec: Spec, name: str) -> str:
    return "sys" if spec.rank is None else name


def _exit(line: bytes, now: float) -> Exit:
    _, index, status = line.split()
    code = os.waitstatus_to_exitcode(int(status))
    return Exit(int(index), code, now)
