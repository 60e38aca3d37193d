"""Starts and watches the workers of a training on one machine: `python -m shoal.train.launch`, local or at the end of an ssh.

The first line on stdin says what to run (JSON of Order). Then: a line `stop` lets the workers save and stop; `end` does too,
but not for long; and the end of stdin means that whoever started this is gone, which is a `stop` too. Nothing is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.agent import runtime
from shoal.agent.run_end import correct_end
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import FAILURE_GRACE_S, TERM_SIGNALS, Action, Spec, Watch, Workers, wait_readable
from shoal.core.ports import free_port

GRACE_S = 60.0
"""Between a stop and SIGKILL: time to save."""
STOPPED = 128 + signal.SIGTERM
"""Exit code."""
_END_GRACE_S = 2 * FAILURE_GRACE_S
_NOT_OURS = frozenset(
    "SHOAL_SPOOL OUTPUT_DIR SHOAL_RESUME_FROM SHOAL_JOB_ID SHOAL_JOB_NAME SHOAL_ATTEMPT SHOAL_REPLAY".split()
)
"""Of a run this one was started from."""


@dataclass(slots=True, kw_only=True)
class Order:
    """What to run on this machine."""

    entry: list[str]
    """Script and arguments."""
    cwd: str
    name: str = "train"
    workers: int = 1
    node: int = 0
    nodes: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    env: dict[str, str] = field(default_factory=dict)
    grace_s: float = GRACE_S

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class _SameOutput:
    """The workers write where we do."""

    def pipe(self, rank: int | None, stream: str) -> int:
        return os.dup(1 if stream == "out" else 2)


class _Wishes:
    """What is asked for on stdin, or by a signal."""

    def __init__(self, order: Order) -> None:
        self.grace_s: float | None = None
        """How long the workers have; None while nobody wants them to stop."""
        self.hurry = False
        self._order = order
        self._open = True
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(0, False)
        for signum in TERM_SIGNALS:
            signal.signal(signum, self._on_signal)

    def fds(self) -> list[int]:
        return [self._wake_r, 0] if self._open else [self._wake_r]

    def read(self) -> None:
        try:
            os.read(self._wake_r, 4096)
        except BlockingIOError:
            pass
        if not self._open:
            return
        try:
            told = os.read(0, 4096)
        except BlockingIOError:
            return
        self._open = bool(told)
        if b"end" in told:
            self._want(_END_GRACE_S)
        elif not told or b"stop" in told:
            self._want(self._order.grace_s)

    def _on_signal(self, signum: int, frame: object) -> None:
        self.hurry = self.grace_s is not None
        self._want(self._order.grace_s)
        os.write(self._wake_w, b"x")

    def _want(self, grace_s: float) -> None:
        self.grace_s = grace_s if self.grace_s is None else min(grace_s, self.grace_s)


def main() -> int:
    order = Order(**json.loads(_first_line()))
    if order.nodes == 1:
        order.master_port = free_port()
    wishes = _Wishes(order)
    workers = Workers(_SameOutput())
    watch = Watch(order.workers)
    workers.start(_specs(order), Path(order.cwd), list, reap=True, env=dict(os.environ))
    try:
        while not (watch.done or workers.gone):
            wait_readable([workers.fileno(), *wishes.fds()], watch.wait_s(time.monotonic()))
            wishes.read()
            watch.exits += workers.events()
            action = watch.next_action(time.monotonic(), stop_grace_s=wishes.grace_s, fenced=wishes.hurry)
            if action is Action.TERMINATE:
                workers.terminate()
    finally:
        watch.exits += workers.kill()
    failure = watch.failure
    if failure is not None and not watch.told and "SHOAL_SPOOL" in order.env:
        correct_end(Path(order.env["SHOAL_SPOOL"]), failure.code)
    if failure is not None and not watch.told:
        return failure.code if failure.code > 0 else 128 - failure.code
    if watch.told:
        return 0 if watch.complete and all(e.code == 0 for e in watch.exits) else STOPPED
    return 0 if watch.complete else 128 + signal.SIGKILL


def _specs(order: Order) -> list[Spec]:
    launch = Launch(
        {"node": order.node, "attempt_id": order.name, "job_id": order.name, "slots": list(range(order.workers))}
    )
    join = JoinReply(
        {
            "ready": True,
            "num_nodes": order.nodes,
            "accels": order.workers,
            "master_addr": order.master_addr,
            "master_port": order.master_port,
        }
    )
    command = runtime.command(order.entry, sys.executable, Path(order.cwd))
    host = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
    host.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // order.workers)))
    host.pop("TORCHELASTIC_ERROR_FILE", None)
    own = [runtime.rank_env(launch, join, rank, "") for rank in range(order.workers)]
    for env in own:
        env.pop("TORCHELASTIC_ERROR_FILE", None)
    return [Spec(command.argv, host | order.env | env, rank) for rank, env in enumerate(own)]


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            raise SystemExit("python -m shoal.train.launch is started by shoal, with its orders on stdin")
        line += piece
    return line


if __name__ == "__main__":
    raise SystemExit(main())
