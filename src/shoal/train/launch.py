"""Launcher of a training's workers on one machine, local or over ssh: `python -m shoal.train.launch`.

The first line on stdin is the JSON of an Order. Afterwards a line `stop` lets the workers save and stop; `end` does the same
with a short grace period. The end of stdin means that the parent is gone, and acts as `stop`. No process is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.agent.sdk_records.run_end import correct_end
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import runtime
from shoal.agent.workers.stop_signals import StopSignals
from shoal.agent.workers.workers import FAILURE_GRACE_S, Action, Spec, Watch, Workers, wait_readable
from shoal.core.ports import free_port

GRACE_S = 60.0
"""Seconds between a stop and SIGKILL, for saving."""
STOPPED = 128 + signal.SIGTERM
"""Exit code of a launcher that was stopped."""
_END_GRACE_S = 2 * FAILURE_GRACE_S
_NOT_OURS = frozenset(
    "SHOAL_SPOOL OUTPUT_DIR SHOAL_RESUME_FROM SHOAL_JOB_ID SHOAL_JOB_NAME SHOAL_ATTEMPT SHOAL_REPLAY".split()
)
"""Variables of a surrounding run, which must not reach the workers."""


@dataclass(slots=True, kw_only=True)
class LauncherWork:
    """Work for one launcher: what to run on this machine."""

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
    """Output of the workers to our own stdout and stderr."""

    def pipe(self, rank: int | None, stream: str) -> int:
        return os.dup(1 if stream == "out" else 2)


class _StopRequests:
    """Requests to stop, from stdin or by a signal."""

    def __init__(self, work: LauncherWork) -> None:
        self.grace_s: float | None = None
        """Seconds that the workers have to stop; None without a request."""
        self.hurry = False
        self._work = work
        self._open = True
        self._signals = StopSignals()
        os.set_blocking(0, False)
        self._signals.install(self._on_signal)

    def fds(self) -> list[int]:
        return [self._signals.wake_r, 0] if self._open else [self._signals.wake_r]

    def read(self) -> None:
        self._signals.clear()
        if not self._open:
            return
        try:
            data = os.read(0, 4096)
        except BlockingIOError:
            return
        self._open = bool(data)
        if b"end" in data:
            self._request(_END_GRACE_S)
        elif not data or b"stop" in data:
            self._request(self._work.grace_s)

    def _on_signal(self, signum: int) -> None:
        self.hurry = self.grace_s is not None
        self._request(self._work.grace_s)

    def _request(self, grace_s: float) -> None:
        self.grace_s = grace_s if self.grace_s is None else min(grace_s, self.grace_s)


def main() -> int:
    work = LauncherWork(**json.loads(_first_line()))
    if work.nodes == 1:
        work.master_port = free_port()
    requests = _StopRequests(work)
    workers = Workers(_SameOutput())
    watch = Watch(work.workers)
    workers.start(_specs(work), Path(work.cwd), list, reap=True, env=dict(os.environ))
    try:
        while not (watch.done or workers.gone):
            wait_readable([workers.fileno(), *requests.fds()], watch.wait_s(time.monotonic()))
            requests.read()
            watch.exits += workers.events()
            action = watch.next_action(time.monotonic(), stop_grace_s=requests.grace_s, fenced=requests.hurry)
            if action is Action.TERMINATE:
                workers.terminate()
    finally:
        watch.exits += workers.kill()
    failure = watch.failure
    if failure is not None and not watch.told and "SHOAL_SPOOL" in work.env:
        correct_end(Path(work.env["SHOAL_SPOOL"]), failure.code)
    if failure is not None and not watch.told:
        return failure.code if failure.code > 0 else 128 - failure.code
    if watch.told:
        return 0 if watch.complete and all(e.code == 0 for e in watch.exits) else STOPPED
    return 0 if watch.complete else 128 + signal.SIGKILL


def _specs(work: LauncherWork) -> list[Spec]:
    launch = Launch(
        {"node": work.node, "attempt_id": work.name, "job_id": work.name, "slots": list(range(work.workers))}
    )
    join = JoinReply(
        {
            "ready": True,
            "num_nodes": work.nodes,
            "accels": work.workers,
            "master_addr": work.master_addr,
            "master_port": work.master_port,
        }
    )
    command = runtime.command(work.entry, sys.executable, Path(work.cwd))
    host = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
    host.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // work.workers)))
    host.pop("TORCHELASTIC_ERROR_FILE", None)
    own = [runtime.rank_env(launch, join, rank, "") for rank in range(work.workers)]
    for env in own:
        env.pop("TORCHELASTIC_ERROR_FILE", None)
    return [Spec(command.argv, host | work.env | env, rank) for rank, env in enumerate(own)]


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            raise SystemExit("python -m shoal.train.launch is started by shoal and reads its work from stdin")
        line += piece
    return line


if __name__ == "__main__":
    raise SystemExit(main())
