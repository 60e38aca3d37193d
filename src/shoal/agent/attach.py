"""A shell inside a running job: an SSH server is started where a worker is, with its environment, and people come to it by the gateway.

`python -m shoal.agent.attach PID` goes into the sandbox of that process, with no more privileges than it has, and becomes the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal.agent import inner, namespaces
from shoal.agent.lease import Tunnel
from shoal.agent.node import WorkDir
from shoal.agent.stacks import rank_processes
from shoal.agent.wire import LEASE_SOCKET, Launch
from shoal.core.errors import NotAllowedNow

SERVER_ENV = "SHOAL_LEASE_SERVER"
"""shoal.agent.lease_server.SERVER_ENV, which needs asyncssh to be imported."""
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


class WayIn:
    """Ends with the agent, or when closed."""

    def __init__(self, launch: Launch, order: dict[str, Any], work: WorkDir):
        worker, self._order = _worker(), order
        folder = work.tmp / "attach"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / LEASE_SOCKET).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(worker)],
            # Not the worker's environment yet: PYTHONPATH or LD_PRELOAD of the job would run its code out here.
            env={**os.environ, SERVER_ENV: str(order["server"]), "SHOAL_SPOOL": str(folder)},
            stdin=subprocess.DEVNULL,
        )
        self._tunnel = Tunnel(launch, order, folder)
        self._tunnel.start()

    def serves(self, order: dict[str, Any]) -> bool:
        same = all(order[fact] == self._order[fact] for fact in ("gateway_port", "gateway_key", "public_key"))
        return same and self._process.poll() is None

    def close(self) -> None:
        self._tunnel.close()
        self._process.kill()
        self._process.wait()


def _worker() -> int:
    """The process of the lowest rank; of a launcher that has started none yet, the launcher."""
    ranks = rank_processes(os.getpid())
    if ranks:
        return ranks[min(ranks)]
    marked = [pid for pid in inner.descendants(os.getpid()) if "SHOAL_SPOOL" in _env(pid)]
    if not marked:
        raise NotAllowedNow("No worker runs here now.")
    return marked[0]


def _env(pid: int) -> dict[str, str]:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0"))
    return {name: value for name, mark, value in pairs if mark}


def main(pid: int) -> None:
    inner.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    env = _env(pid) | {name: os.environ[name] for name in (SERVER_ENV, "SHOAL_SPOOL")}
    flags = namespaces.differing(pid)
    folder = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
    inside = _pid_inside(pid)
    namespaces.enter(pid, flags)
    if flags & namespaces.PID and (child := os.fork()):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    if flags & namespaces.PID:
        inner.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if flags:
        namespaces.lower_to(inside)
    os.chdir(folder)
    os.execve(sys.executable, [sys.executable, "-m", "shoal.agent.lease_server"], env)  # noqa: S606


def _pid_inside(pid: int) -> int:
    """As it is known in its own namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


if __name__ == "__main__":
    main(int(sys.argv[1]))
