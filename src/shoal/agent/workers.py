"""The workers of a node: started through inner.py (in the sandbox, where there is one), watched, ended without a trace."""

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
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from shoal.agent import inner
from shoal.agent.logs import Capture
from shoal.agent.reasons import Exit, first_failure

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 30.0
FAILURE_GRACE_S = 1.5
"""Between SIGTERM and SIGKILL for the peers of a failed worker: without it they have nothing left to do together."""
_SETTLE_S = 0.2
"""After a plain exit, wait so long for news of a peer that was killed and caused it."""
_KILL_PATIENCE_S = 2.0
_OBEYED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""What programs that handle a signal exit with."""
# Run as compiled a moment ago, where that could be kept: compiling it again takes as long as all it does.
_INNER = next(p for p in (getattr(inner, "__cached__", None), inner.__file__) if p and Path(p).is_file())


class Spec(NamedTuple):
    """One process to start."""

    argv: list[str]
    env: dict[str, str]
    rank: int | None
    """Whose output it is; None is Shoal's own (torchrun)."""
    group: bool = False
    """Send SIGTERM to its whole process group: shells do not pass it on."""


class LaunchFailed(Exception):
    """The sandbox or its inner process did not come up."""


class Output(Protocol):
    """Whoever reads what the workers print."""

    def pipe(self, rank: int | None, stream: str) -> int: ...


class Workers:
    def __init__(self, capture: Output):
        self._capture = capture
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._rest = b""
        self.gone = False
        """The inner process has ended: nothing more will be told."""
        self.root_pid = os.getpid()
        """Whatever is below it is the job's."""

    def start(
        self, specs: list[Spec], cwd: Path, wrap: Callable[[list[str]], list[str]], *, reap: bool, env: dict[str, str]
    ) -> None:
        """`wrap` puts a command into the sandbox; `env` is that of the sandbox and the inner process themselves."""
        ours, theirs = socket.socketpair()
        pipes = [
            (self._capture.pipe(s.rank, _stream(s, "out")), self._capture.pipe(s.rank, _stream(s, "err")))
            for s in specs
        ]
        own = self._capture.pipe(None, "sys")
        fds = [theirs.fileno(), *(fd for pair in pipes for fd in pair)]
        # A cluster may tell every process of a job to end, a terminal every one in front of it. The sandbox must not: its end is
        # that of all inside, before they have heard of it. Held back there, and let through again by each worker.
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, TERM_SIGNALS)
        try:
            self._process = subprocess.Popen(
                wrap([sys.executable, "-I", "-S", _INNER, str(theirs.fileno())]),
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
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
            theirs.close()
            for fd in [own, *fds[1:]]:
                os.close(fd)
        self._socket = ours
        workers = [
            {"argv": s.argv, "env": s.env, "out": out, "err": err, "group": s.group}
            for s, (out, err) in zip(specs, pipes, strict=True)
        ]
        data = marshal.dumps({"cwd": str(cwd), "reap": reap, "workers": workers})
        try:
            ours.sendall(len(data).to_bytes(8, "big") + data)
        except OSError as error:
            raise LaunchFailed(f"the sandbox did not come up: {error}") from error
        self._first_line(ours)

    def _first_line(self, end: socket.socket) -> str:
        """What is said on coming up."""
        end.settimeout(HELLO_TIMEOUT_S)
        try:
            while b"\n" not in self._rest:
                piece = end.recv(4096)
                if not piece:
                    raise LaunchFailed("the sandbox ended before it began")
                self._rest += piece
        except OSError as error:
            raise LaunchFailed(f"the sandbox did not come up: {error}") from error
        line, _, self._rest = self._rest.partition(b"\n")
        end.setblocking(False)
        return line.decode(errors="replace")

    def fileno(self) -> int:
        return self._socket.fileno() if self._socket else -1

    def events(self) -> list[Exit]:
        """Workers that ended since the last call."""
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
        """SIGKILL to everything; returns when nothing is left, with the last ends told of."""
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
        left = inner.kill_below(os.getpid())
        if left:
            logger.error("processes that cannot be killed: %s", left)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.gone = True
        return exits

    def _end_sandbox(self) -> None:
        """It ends with the inner process."""

    def _send(self, command: bytes) -> None:
        if self._socket is not None and not self.gone:
            try:
                self._socket.send(command)
            except OSError as error:
                logger.info("inner process: %s", error)


class Action(Enum):
    WAIT = "wait"
    TERMINATE = "terminate"
    KILL = "kill"


class Watch:
    """What to do about a node's workers, from what is known of them. Decides; acts on nothing."""

    def __init__(self, count: int):
        self._count = count
        self.exits: list[Exit] = []
        self.termed_at: float | None = None
        self.killed_at: float | None = None
        self._kill_at: float | None = None
        self.told = False
        """They are ended by order, not by their own failure."""

    @property
    def complete(self) -> bool:
        """Every worker has ended by itself or by our signal, and we know how."""
        return len(self.exits) >= self._count

    @property
    def done(self) -> bool:
        return self.complete or self.killed_at is not None

    @property
    def lost_one(self) -> bool:
        """One ended in error, maybe in the middle of writing. Not one that obeyed our signal and left by itself."""
        return any(e.code and not (self.termed_at and e.at >= self.termed_at and e.code in _OBEYED) for e in self.exits)

    @property
    def failure(self) -> Exit | None:
        return first_failure(self.exits, self.termed_at, self.killed_at)

    def next_action(self, now: float, *, stop_grace_s: float | None, fenced: bool) -> Action:
        """`stop_grace_s` is None unless a stop was asked for."""
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
        """Until something is due without further news."""
        if self._kill_at is not None:
            return max(0.0, self._kill_at - now)
        if self.failure is not None:
            return _SETTLE_S
        return None

    def _terminate(self, now: float, grace_s: float) -> Action:
        self.termed_at, self._kill_at = now, now + grace_s
        return Action.TERMINATE


def rank_pipes(capture: Capture, folder: Path, ranks: range) -> list[str]:
    """Named pipes for workers that torchrun starts; returns the command prefix that makes a worker use its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for local, rank in enumerate(ranks):
        for stream in ("out", "err"):
            path = folder / f"{local}.{stream}"
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            # Open for writing too: else it would end when the first worker has, or block until one comes.
            capture.add(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), rank, stream)
    return [sys.executable, "-I", "-S", _INNER, "--rank-exec", str(folder)]


def wait_readable(fds: list[int], timeout_s: float | None) -> None:
    select.select([fd for fd in fds if fd >= 0], [], [], timeout_s)


def _stream(spec: Spec, name: str) -> str:
    return "sys" if spec.rank is None else name


def _exit(line: bytes, now: float) -> Exit:
    _, index, status = line.split()
    code = os.waitstatus_to_exitcode(int(status))
    return Exit(int(index), code, now)


TERM_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
